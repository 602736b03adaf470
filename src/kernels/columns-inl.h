// SPDX-License-Identifier: Apache-2.0
// Per-target helpers: fp16 rows in a stage to columns and back, and conversions that match tensor/float16.h to the bit.

#if defined(NM_COLUMNS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NM_COLUMNS_INL_H
#undef NM_COLUMNS_INL_H
#else
#define NM_COLUMNS_INL_H
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/simd_math-inl.h"
#include "tensor/float16.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if NM_SIMD_HAVE_F16

// As F32ToF16: every NaN becomes the quiet one of its sign, where the instruction would keep part of the payload.
HWY_INLINE void QuietFloatToHalf(const float* HWY_RESTRICT from, size_t n, uint16_t* HWY_RESTRICT to) {
  for (size_t i = 0; i < n; ++i) to[i] = F32ToF16(from[i]);
}

// To the bit what F32ToF16 gives.
HWY_INLINE void ExactFloatToHalf(const float* HWY_RESTRICT from, size_t n, uint16_t* HWY_RESTRICT to) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  const size_t lanes = hn::Lanes(d);
  const auto zero = hn::Zero(d);
  // Stays zero while all is finite: one instruction per vector looks for what might be NaN.
  hn::Vec<decltype(d)> odd[4] = {zero, zero, zero, zero};
  const auto convert = [&](size_t i, size_t which) HWY_ATTR {
    const auto x = hn::LoadU(d, from + i);
    odd[which] = hn::MulAdd(x, zero, odd[which]);
    hn::StoreU(hn::DemoteTo(d16, x), d16, reinterpret_cast<hwy::float16_t*>(to + i));
  };
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (size_t which = 0; which < 4; ++which) convert(i + which * lanes, which);
  }
  for (; i + lanes <= n; i += lanes) convert(i, 0);
  QuietFloatToHalf(from + i, n - i, to + i);
  const auto all = hn::Add(hn::Add(odd[0], odd[1]), hn::Add(odd[2], odd[3]));
  if (!hn::AllTrue(d, hn::Eq(all, zero))) QuietFloatToHalf(from, n, to);
}

// to = (kAdd ? to : 0) + scale * from; false if one of `from` is not finite.
template <bool kAdd>
HWY_INLINE bool ScaledHalfToFloat(const uint16_t* HWY_RESTRICT from, size_t n, float scale, float* HWY_RESTRICT to) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  const hn::RebindToUnsigned<decltype(d)> du;
  const size_t lanes = hn::Lanes(d);
  const auto vscale = hn::Set(d, scale);
  const auto infinity = hn::Set(du, 0x7f800000u);
  auto bad = hn::MaskFromVec(hn::Zero(du));
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto x = hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from + i)));
    bad = hn::Or(bad, hn::Eq(hn::And(hn::BitCast(du, x), infinity), infinity));
    auto y = hn::Mul(x, vscale);
    if constexpr (kAdd) y = hn::Add(hn::LoadU(d, to + i), y);
    hn::StoreU(y, d, to + i);
  }
  bool finite = hn::AllFalse(du, bad);
  for (; i < n; ++i) {
    finite = finite && (from[i] & 0x7c00u) != 0x7c00u;
    const float y = F16ToF32(from[i]) * scale;
    to[i] = kAdd ? to[i] + y : y;
  }
  return finite;
}

// The vector's 16 bytes number b come from rows[8 b]: assembled by loads, which need no shuffle.
template <class D>
HWY_INLINE hn::Vec<D> LoadEighths(D d, const uint16_t* rows, size_t stride) {
  if constexpr (hn::MaxLanes(D()) == 8) {
    return hn::LoadU(d, rows);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, LoadEighths(half, rows + hn::MaxLanes(half) * stride, stride),
                       LoadEighths(half, rows, stride));
  }
}

template <class D>
HWY_INLINE void StoreEighths(hn::Vec<D> v, D d, uint16_t* rows, size_t stride) {
  if constexpr (hn::MaxLanes(D()) == 8) {
    hn::StoreU(v, d, rows);
  } else {
    const hn::Half<D> half;
    StoreEighths(hn::LowerHalf(half, v), half, rows, stride);
    StoreEighths(hn::UpperHalf(half, v), half, rows + hn::MaxLanes(half) * stride, stride);
  }
}

// In every 16 bytes, v[i] lane j becomes v[j] lane i: three rounds of a perfect shuffle, each of which rotates the six
// bits of (i, j) by one. Its own inverse.
template <class D>
HWY_INLINE void TransposeEighths(D d, hn::Vec<D> (&v)[8]) {
  for (int round = 0; round < 3; ++round) {
    hn::Vec<D> w[8];
    for (size_t i = 0; i < 4; ++i) {
      w[2 * i] = hn::InterleaveLower(d, v[i], v[i + 4]);
      w[2 * i + 1] = hn::InterleaveUpper(d, v[i], v[i + 4]);
    }
    for (size_t i = 0; i < 8; ++i) v[i] = w[i];
  }
}

// Stores that fill whole cache lines past the cache: the line need not be read first, which saves a third of the
// traffic. Only x86 has them in a form that pays; elsewhere the cores see full lines by themselves.
#undef NM_SIMD_STREAM
#define NM_SIMD_STREAM HWY_ARCH_X86

template <bool kStream, class D>
HWY_INLINE void StoreLine(hn::Vec<D> v, D d, hn::TFromD<D>* to) {
#if NM_SIMD_STREAM
  if constexpr (kStream) return hn::Stream(v, d, to);
#endif
  hn::StoreU(v, d, to);
}

// Columns of the widest tile: 32 are a cache line.
constexpr size_t kWideTile = hn::MaxLanes(hn::CappedTag<uint16_t, 32>());

// Eight channels of as many columns as D has lanes.
template <bool kStream, class D>
HWY_INLINE void StoreTile(D d, const uint16_t* stage, size_t stage_stride, uint16_t* out, size_t width) {
  hn::Vec<D> v[8];
  for (size_t i = 0; i < 8; ++i) v[i] = LoadEighths(d, stage + i * stage_stride, stage_stride);
  TransposeEighths(d, v);
  for (size_t i = 0; i < 8; ++i) StoreLine<kStream>(v[i], d, out + i * width);
}

template <class D>
HWY_INLINE void LoadTile(D d, const uint16_t* columns, size_t width, uint16_t* stage, size_t stage_stride) {
  hn::Vec<D> v[8];
  for (size_t i = 0; i < 8; ++i) v[i] = hn::LoadU(d, columns + i * width);
  TransposeEighths(d, v);
  for (size_t i = 0; i < 8; ++i) StoreEighths(v[i], d, stage + i * stage_stride, stage_stride);
}

// out[channel, row] = stage[row, channel] for row < filled, zero up to n_rows. The stage's rows behind `filled` are
// zero. With kStream, `out` and every channel start at a cache line and n_rows is a multiple
// of 32.
template <bool kStream>
HWY_INLINE void StageToColumns(const uint16_t* HWY_RESTRICT stage, size_t stage_stride, size_t channels, size_t filled,
                               size_t n_rows, uint16_t* HWY_RESTRICT out, size_t width) {
  const hn::CappedTag<uint16_t, 32> wide;
  const hn::CappedTag<uint16_t, 8> narrow;
  const auto zero = hn::Zero(wide);
  size_t channel = 0;
  for (; channel + 8 <= channels; channel += 8) {
    const uint16_t* from = stage + channel;
    uint16_t* to = out + channel * width;
    size_t row = 0;
    for (; row < filled && row + kWideTile <= n_rows; row += kWideTile) {
      StoreTile<kStream>(wide, from + row * stage_stride, stage_stride, to + row, width);
    }
    for (; row + kWideTile <= n_rows; row += kWideTile) {
      for (size_t i = 0; i < 8; ++i) StoreLine<kStream>(zero, wide, to + i * width + row);
    }
    for (; row + 8 <= n_rows; row += 8) {
      StoreTile<false>(narrow, from + row * stage_stride, stage_stride, to + row, width);
    }
    for (; row < n_rows; ++row) {
      for (size_t i = 0; i < 8; ++i) to[i * width + row] = from[row * stage_stride + i];
    }
  }
  for (; channel < channels; ++channel) {
    for (size_t row = 0; row < n_rows; ++row) {
      out[channel * width + row] = row < filled ? stage[row * stage_stride + channel] : uint16_t{0};
    }
  }
}

// Asks for the cache lines of a matrix of columns some time before the tiles get there, over the whole matrix. Four
// places a page apart take turns: the hardware follows streams within pages, and four of them keep memory busier than
// one (measured: routing_bench, a quarter less time to unpack).
class LinesAhead {
 public:
  HWY_INLINE LinesAhead(const uint16_t* columns, size_t channels, size_t width, size_t n_rows)
      : columns_(columns),
        channels_(channels),
        width_(width),
        n_rows_(n_rows),
        page_((kPageHalves + width - 1) / width) {}

  size_t n_asked() const { return n_asked_; }  // lines
  // Lines of the first `channels` channels.
  size_t LinesUntil(size_t channels) const { return channels * ((n_rows_ + 31) / 32); }

  HWY_INLINE void Next(size_t n_lines) {
    n_asked_ += n_lines;
    for (size_t i = 0; i < n_lines && channel_ < channels_; ++i) {
      const size_t channel = channel_ + stream_ * page_;
      if (channel < channels_) hwy::Prefetch(columns_ + channel * width_ + row_);
      if (++stream_ < kStreams) continue;
      stream_ = 0;
      row_ += 32;
      if (row_ < n_rows_) continue;
      row_ = 0;
      if (++channel_ % page_ == 0) channel_ += (kStreams - 1) * page_;
    }
  }

 private:
  static constexpr size_t kStreams = 4;
  static constexpr size_t kPageHalves = 2048;
  const uint16_t* columns_;
  size_t channels_, width_, n_rows_, page_;  // page_: channels per page, at least 1
  size_t channel_ = 0, row_ = 0, stream_ = 0, n_asked_ = 0;
};

// stage[row, channel] = columns[channel, row] for row < n_rows; up to 31 rows behind may be overwritten too. `left`
// says how many columns may be read.
HWY_INLINE void ColumnsToStage(const uint16_t* HWY_RESTRICT columns, size_t width, size_t left, size_t channels,
                               size_t n_rows, LinesAhead& ahead, uint16_t* HWY_RESTRICT stage, size_t stage_stride) {
  const hn::CappedTag<uint16_t, 32> wide;
  const hn::CappedTag<uint16_t, 8> narrow;
  size_t channel = 0;
  for (; channel + 8 <= channels; channel += 8) {
    const uint16_t* from = columns + channel * width;
    uint16_t* to = stage + channel;
    size_t row = 0;
    // Tiles go beyond n_rows while there are columns to read.
    for (; row < n_rows && row + kWideTile <= left; row += kWideTile) {
      ahead.Next(4);
      LoadTile(wide, from + row, width, to + row * stage_stride, stage_stride);
    }
    for (; row < n_rows && row + 8 <= left; row += 8) {
      LoadTile(narrow, from + row, width, to + row * stage_stride, stage_stride);
    }
    for (; row < n_rows; ++row) {
      for (size_t i = 0; i < 8; ++i) to[row * stage_stride + i] = from[i * width + row];
    }
  }
  for (; channel < channels; ++channel) {
    for (size_t row = 0; row < n_rows; ++row) stage[row * stage_stride + channel] = columns[channel * width + row];
  }
}

// to = from; false if one of them is not finite. With kStream, `to` is a cache line and n a multiple of 32.
template <bool kStream>
HWY_INLINE bool CopyHalves(const uint16_t* HWY_RESTRICT from, size_t n, uint16_t* HWY_RESTRICT to) {
  const hn::CappedTag<uint16_t, 32> d;
  const size_t lanes = hn::Lanes(d);
  const auto infinity = hn::Set(d, uint16_t{0x7c00});
  auto bad = hn::MaskFromVec(hn::Zero(d));
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto x = hn::LoadU(d, from + i);
    bad = hn::Or(bad, hn::Eq(hn::And(x, infinity), infinity));
    StoreLine<kStream>(x, d, to + i);
  }
  bool finite = hn::AllFalse(d, bad);
  for (; i < n; ++i) {
    finite = finite && (from[i] & 0x7c00u) != 0x7c00u;
    to[i] = from[i];
  }
  return finite;
}

#else  // no conversion instructions: plain loops

class LinesAhead {
 public:
  HWY_INLINE LinesAhead(const uint16_t*, size_t, size_t, size_t) {}
  size_t n_asked() const { return 0; }
  size_t LinesUntil(size_t) const { return 0; }
  HWY_INLINE void Next(size_t) {}
};

HWY_INLINE void ExactFloatToHalf(const float* HWY_RESTRICT from, size_t n, uint16_t* HWY_RESTRICT to) {
  for (size_t i = 0; i < n; ++i) to[i] = F32ToF16(from[i]);
}

template <bool kAdd>
HWY_INLINE bool ScaledHalfToFloat(const uint16_t* HWY_RESTRICT from, size_t n, float scale, float* HWY_RESTRICT to) {
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    finite = finite && (from[i] & 0x7c00u) != 0x7c00u;
    const float y = F16ToF32(from[i]) * scale;
    to[i] = kAdd ? to[i] + y : y;
  }
  return finite;
}

template <bool kStream>
HWY_INLINE void StageToColumns(const uint16_t* HWY_RESTRICT stage, size_t stage_stride, size_t channels, size_t filled,
                               size_t n_rows, uint16_t* HWY_RESTRICT out, size_t width) {
  for (size_t channel = 0; channel < channels; ++channel) {
    for (size_t row = 0; row < n_rows; ++row) {
      out[channel * width + row] = row < filled ? stage[row * stage_stride + channel] : uint16_t{0};
    }
  }
}

HWY_INLINE void ColumnsToStage(const uint16_t* HWY_RESTRICT columns, size_t width, size_t /*left*/, size_t channels,
                               size_t n_rows, LinesAhead& /*ahead*/, uint16_t* HWY_RESTRICT stage,
                               size_t stage_stride) {
  for (size_t channel = 0; channel < channels; ++channel) {
    for (size_t row = 0; row < n_rows; ++row) stage[row * stage_stride + channel] = columns[channel * width + row];
  }
}

template <bool kStream>
HWY_INLINE bool CopyHalves(const uint16_t* HWY_RESTRICT from, size_t n, uint16_t* HWY_RESTRICT to) {
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    finite = finite && (from[i] & 0x7c00u) != 0x7c00u;
    to[i] = from[i];
  }
  return finite;
}

#undef NM_SIMD_STREAM
#define NM_SIMD_STREAM 0

#endif  // NM_SIMD_HAVE_F16

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // NM_COLUMNS_INL_H
