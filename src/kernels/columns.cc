// SPDX-License-Identifier: Apache-2.0
#include "kernels/columns.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/columns.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h: code that is compiled once per target.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/columns-inl.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Some channels of some rows are converted into or out of a stage that stays in the cache (80 KiB), where columns and
// rows are exchanged. Rows are then read and written in runs of half a kilobyte, columns in one run.
constexpr size_t kTileChannels = 128;
constexpr size_t kTileRows = 256;
// 32 more than the channels: a power of two would put too many rows into the same few lines of the cache.
constexpr size_t kStageStride = kTileChannels + 32;
[[maybe_unused]] constexpr size_t kLineHalves = 32;  // a cache line of fp16

HWY_INLINE bool StartsLine(const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }

// Asks for a row's channels while those of the rows before it are converted.
HWY_INLINE void PrefetchRow(const float* row) {
  for (size_t i = 0; i < kTileChannels; i += 16) hwy::Prefetch(row + i);
}

template <bool kStream>
void PackTiles(const float* const* rows, size_t n_rows, size_t channels, size_t width, uint16_t* out) {
  HWY_ALIGN uint16_t stage[kTileRows * kStageStride];
  constexpr size_t kAhead = 2;  // rows
  for (size_t column = 0; column < width; column += kTileRows) {
    const size_t wanted = std::min(kTileRows, width - column);
    const size_t filled = std::min(wanted, n_rows - std::min(n_rows, column));
    for (size_t channel = 0; channel < channels; channel += kTileChannels) {
      const size_t n = std::min(kTileChannels, channels - channel);
      for (size_t row = 0; row < filled; ++row) {
        // Behind the last row come the next channels of the first.
        const bool wraps = row + kAhead >= filled;
        const size_t next = column + row + kAhead - (wraps ? filled : 0), first = channel + (wraps ? kTileChannels : 0);
        if (next < n_rows && first + kTileChannels <= channels) PrefetchRow(rows[next] + first);
        ExactFloatToHalf(rows[column + row] + channel, n, stage + row * kStageStride);
      }
      if (channel == 0) std::fill(stage + filled * kStageStride, stage + wanted * kStageStride, uint16_t{0});
      StageToColumns<kStream>(stage, kStageStride, n, filled, wanted, out + channel * width + column, width);
    }
  }
}

void Pack(const float* const* rows, size_t n_rows, size_t channels, size_t width, uint16_t* out) {
#if NM_SIMD_STREAM
  if (StartsLine(out) && width % kLineHalves == 0) {
    PackTiles<true>(rows, n_rows, channels, width, out);
    hwy::FlushStream();
    return;
  }
#endif
  PackTiles<false>(rows, n_rows, channels, width, out);
}

// Calls finish(stage row, channel, channels, row) for all rows, in pieces; false if one of the calls was.
template <class Finish>
HWY_INLINE bool UnpackTiles(const uint16_t* columns, size_t channels, size_t width, size_t n_rows,
                            const Finish& finish) {
  HWY_ALIGN uint16_t stage[kTileRows * kStageStride];
  constexpr size_t kLinesAhead = 448;  // half a tile of 256 rows
  bool finite = true;
  for (size_t column = 0; column < n_rows; column += kTileRows) {
    const size_t wanted = std::min(kTileRows, n_rows - column);
    LinesAhead ahead(columns + column, channels, width, wanted);
    ahead.Next(kLinesAhead);
    for (size_t channel = 0; channel < channels; channel += kTileChannels) {
      const size_t n = std::min(kTileChannels, channels - channel);
      ColumnsToStage(columns + channel * width + column, width, width - column, n, wanted, ahead, stage, kStageStride);
      const size_t n_lines = ahead.LinesUntil(channel + n) + kLinesAhead;
      for (size_t row = 0; row < wanted; ++row) {
        ahead.Next(n_lines > ahead.n_asked() ? (n_lines - ahead.n_asked()) / (wanted - row) + 1 : 0);
        if (!finish(stage + row * kStageStride, channel, n, column + row)) finite = false;
      }
    }
  }
  return finite;
}

bool Unpack(const uint16_t* columns, size_t channels, size_t width, float scale, float* const* rows, size_t n_rows) {
  return UnpackTiles(columns, channels, width, n_rows,
                     [&](const uint16_t* from, size_t channel, size_t n, size_t row)
                         HWY_ATTR { return ScaledHalfToFloat<false>(from, n, scale, rows[row] + channel); });
}

bool Add(const uint16_t* columns, size_t channels, size_t width, float scale, float* const* rows, size_t n_rows) {
  return UnpackTiles(columns, channels, width, n_rows,
                     [&](const uint16_t* from, size_t channel, size_t n, size_t row)
                         HWY_ATTR { return ScaledHalfToFloat<true>(from, n, scale, rows[row] + channel); });
}

bool UnpackFp16(const uint16_t* columns, size_t channels, size_t width, uint16_t* const* rows, size_t n_rows) {
  const bool finite = UnpackTiles(columns, channels, width, n_rows,
                                  [&](const uint16_t* from, size_t channel, size_t n, size_t row) HWY_ATTR {
                                    uint16_t* const to = rows[row] + channel;
#if NM_SIMD_STREAM
                                    if (StartsLine(to) && n % kLineHalves == 0) return CopyHalves<true>(from, n, to);
#endif
                                    return CopyHalves<false>(from, n, to);
                                  });
#if NM_SIMD_STREAM
  hwy::FlushStream();
#endif
  return finite;
}

bool FiniteRow(const uint16_t* halves, size_t n) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<uint16_t> d;
  const size_t lanes = hn::Lanes(d);
  const auto exponent = hn::Set(d, uint16_t{0x7c00});
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto bad = [&](size_t k) {
      return hn::Eq(hn::And(hn::LoadU(d, halves + i + k * lanes), exponent), exponent);
    };
    if (!hn::AllFalse(d, hn::Or(hn::Or(bad(0), bad(1)), hn::Or(bad(2), bad(3))))) return false;
  }
#endif
  for (; i < n; ++i) {
    if ((halves[i] & 0x7c00u) == 0x7c00u) return false;
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace npumoe {

HWY_EXPORT(Pack);
HWY_EXPORT(Unpack);
HWY_EXPORT(Add);
HWY_EXPORT(UnpackFp16);
HWY_EXPORT(FiniteRow);

void PackColumns(std::span<const float* const> rows, size_t channels, size_t width, uint16_t* out) {
  NM_DCHECK(rows.size() <= width);
  HWY_DYNAMIC_DISPATCH(Pack)(rows.data(), rows.size(), channels, width, out);
}

bool UnpackColumns(const uint16_t* columns, size_t channels, size_t width, float scale, std::span<float* const> rows) {
  NM_DCHECK(rows.size() <= width);
  return HWY_DYNAMIC_DISPATCH(Unpack)(columns, channels, width, scale, rows.data(), rows.size());
}

bool AddColumns(const uint16_t* columns, size_t channels, size_t width, float scale, std::span<float* const> rows) {
  NM_DCHECK(rows.size() <= width);
  return HWY_DYNAMIC_DISPATCH(Add)(columns, channels, width, scale, rows.data(), rows.size());
}

bool UnpackHalves(const uint16_t* columns, size_t channels, size_t width, std::span<uint16_t* const> rows) {
  NM_DCHECK(rows.size() <= width);
  return HWY_DYNAMIC_DISPATCH(UnpackFp16)(columns, channels, width, rows.data(), rows.size());
}

bool AllFinite(std::span<const uint16_t> halves) {
  return HWY_DYNAMIC_DISPATCH(FiniteRow)(halves.data(), halves.size());
}

}  // namespace npumoe
#endif  // HWY_ONCE
