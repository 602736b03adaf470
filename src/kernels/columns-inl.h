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

#include "hwy/highway.h"
#include "kernels/simd_math-inl.h"
#include "tensor/float16.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if NM_SIMD_HAVE_F16

// As F32ToF16: every NaN becomes the quiet one of its sign, where the instruction would keep part of the payload.
HWY_INLINE void ExactFloatToHalf(const float* HWY_RESTRICT from, size_t n, uint16_t* HWY_RESTRICT to) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  const size_t lanes = hn::Lanes(d);
  const auto nan = hn::BitCast(d, hn::Set(hn::RebindToUnsigned<decltype(d)>(), 0x7fc00000u));
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto x = hn::LoadU(d, from + i);
    const auto quiet = hn::IfThenElse(hn::IsNaN(x), hn::CopySign(nan, x), x);
    hn::StoreU(hn::DemoteTo(d16, quiet), d16, reinterpret_cast<hwy::float16_t*>(to + i));
  }
  for (; i < n; ++i) to[i] = F32ToF16(from[i]);
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

// Columns [column, column + lanes) of all `channels`, a multiple of 8.
template <class D>
HWY_INLINE void StageToColumnsOf(D d, const uint16_t* stage, size_t stage_stride, size_t channels, uint16_t* out,
                                 size_t width) {
  for (size_t channel = 0; channel < channels; channel += 8) {
    hn::Vec<D> v[8];
    for (size_t i = 0; i < 8; ++i) v[i] = LoadEighths(d, stage + i * stage_stride + channel, stage_stride);
    TransposeEighths(d, v);
    for (size_t i = 0; i < 8; ++i) hn::StoreU(v[i], d, out + (channel + i) * width);
  }
}

template <class D>
HWY_INLINE void ColumnsToStageOf(D d, const uint16_t* columns, size_t width, size_t channels, uint16_t* stage,
                                 size_t stage_stride) {
  for (size_t channel = 0; channel < channels; channel += 8) {
    hn::Vec<D> v[8];
    for (size_t i = 0; i < 8; ++i) v[i] = hn::LoadU(d, columns + (channel + i) * width);
    TransposeEighths(d, v);
    for (size_t i = 0; i < 8; ++i) StoreEighths(v[i], d, stage + i * stage_stride + channel, stage_stride);
  }
}

// How many columns the widest tile that fits takes: 32, 16 or 8, at most a vector; 0 if fewer than 8 are left.
HWY_INLINE size_t TileColumns(size_t left) {
  constexpr size_t kLanes = hn::MaxLanes(hn::CappedTag<uint16_t, 32>());
  if (kLanes >= 32 && left >= 32) return 32;
  if (kLanes >= 16 && left >= 16) return 16;
  return left >= 8 ? 8 : 0;
}

// out[channel, row] = stage[row, channel] for row < n_rows.
HWY_INLINE void StageToColumns(const uint16_t* HWY_RESTRICT stage, size_t stage_stride, size_t channels, size_t n_rows,
                               uint16_t* HWY_RESTRICT out, size_t width) {
  const size_t even = channels / 8 * 8;
  size_t row = 0;
  for (size_t lanes = TileColumns(n_rows); lanes > 0; row += lanes, lanes = TileColumns(n_rows - row)) {
    const uint16_t* from = stage + row * stage_stride;
    if (lanes == 32) StageToColumnsOf(hn::CappedTag<uint16_t, 32>(), from, stage_stride, even, out + row, width);
    if (lanes == 16) StageToColumnsOf(hn::CappedTag<uint16_t, 16>(), from, stage_stride, even, out + row, width);
    if (lanes == 8) StageToColumnsOf(hn::CappedTag<uint16_t, 8>(), from, stage_stride, even, out + row, width);
    for (size_t channel = even; channel < channels; ++channel) {
      for (size_t i = 0; i < lanes; ++i) out[channel * width + row + i] = from[i * stage_stride + channel];
    }
  }
  for (size_t channel = 0; channel < channels; ++channel) {
    for (size_t i = row; i < n_rows; ++i) out[channel * width + i] = stage[i * stage_stride + channel];
  }
}

// stage[row, channel] = columns[channel, row] for row < n_rows; the stage's later rows, up to a multiple of 32, may be
// overwritten. `left` says how many columns may be read.
HWY_INLINE void ColumnsToStage(const uint16_t* HWY_RESTRICT columns, size_t width, size_t left, size_t channels,
                               size_t n_rows, uint16_t* HWY_RESTRICT stage, size_t stage_stride) {
  const size_t even = channels / 8 * 8;
  size_t row = 0;
  while (row < n_rows) {
    // A tile may go beyond n_rows while there are columns to read.
    const size_t lanes = std::min(TileColumns(left - row), TileColumns((n_rows - row + 7) / 8 * 8));
    uint16_t* to = stage + row * stage_stride;
    if (lanes == 32) ColumnsToStageOf(hn::CappedTag<uint16_t, 32>(), columns + row, width, even, to, stage_stride);
    if (lanes == 16) ColumnsToStageOf(hn::CappedTag<uint16_t, 16>(), columns + row, width, even, to, stage_stride);
    if (lanes == 8) ColumnsToStageOf(hn::CappedTag<uint16_t, 8>(), columns + row, width, even, to, stage_stride);
    if (lanes == 0) break;
    for (size_t channel = even; channel < channels; ++channel) {
      for (size_t i = 0; i < lanes; ++i) to[i * stage_stride + channel] = columns[channel * width + row + i];
    }
    row += lanes;
  }
  for (size_t channel = 0; channel < channels; ++channel) {
    for (size_t i = row; i < n_rows; ++i) stage[i * stage_stride + channel] = columns[channel * width + i];
  }
}

#else  // no conversion instructions: plain loops

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

HWY_INLINE void StageToColumns(const uint16_t* HWY_RESTRICT stage, size_t stage_stride, size_t channels, size_t n_rows,
                               uint16_t* HWY_RESTRICT out, size_t width) {
  for (size_t channel = 0; channel < channels; ++channel) {
    for (size_t row = 0; row < n_rows; ++row) out[channel * width + row] = stage[row * stage_stride + channel];
  }
}

HWY_INLINE void ColumnsToStage(const uint16_t* HWY_RESTRICT columns, size_t width, size_t /*left*/, size_t channels,
                               size_t n_rows, uint16_t* HWY_RESTRICT stage, size_t stage_stride) {
  for (size_t channel = 0; channel < channels; ++channel) {
    for (size_t row = 0; row < n_rows; ++row) stage[row * stage_stride + channel] = columns[channel * width + row];
  }
}

#endif  // NM_SIMD_HAVE_F16

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // NM_COLUMNS_INL_H
