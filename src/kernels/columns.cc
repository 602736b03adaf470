// SPDX-License-Identifier: Apache-2.0
#include "kernels/columns.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/columns.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h: code that is compiled once per target.
#include "hwy/highway.h"
#include "kernels/columns-inl.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile is converted into or out of a stage that stays in the first-level cache (16 KiB), where columns and rows are
// exchanged. The rows outside are then read and written in runs of a kilobyte, which the hardware prefetches.
constexpr size_t kTileChannels = 256;
constexpr size_t kTileRows = 32;  // a cache line of fp16 columns

void PackTiles(const float* const* rows, size_t n_rows, size_t channels, size_t width, uint16_t* out) {
  HWY_ALIGN uint16_t stage[kTileRows * kTileChannels];
  for (size_t channel = 0; channel < channels; channel += kTileChannels) {
    const size_t n = std::min(kTileChannels, channels - channel);
    for (size_t column = 0; column < width; column += kTileRows) {
      const size_t wanted = std::min(kTileRows, width - column);
      const size_t filled = std::min(wanted, n_rows - std::min(n_rows, column));
      for (size_t row = 0; row < filled; ++row) {
        ExactFloatToHalf(rows[column + row] + channel, n, stage + row * kTileChannels);
      }
      if (filled == 0) {
        for (size_t i = 0; i < n; ++i) std::memset(out + (channel + i) * width + column, 0, wanted * sizeof(*out));
        continue;
      }
      std::fill(stage + filled * kTileChannels, stage + wanted * kTileChannels, uint16_t{0});
      StageToColumns(stage, kTileChannels, n, wanted, out + channel * width + column, width);
    }
  }
}

template <bool kAdd>
bool UnpackTiles(const uint16_t* columns, size_t channels, size_t width, float scale, float* const* rows,
                 size_t n_rows) {
  HWY_ALIGN uint16_t stage[kTileRows * kTileChannels];
  bool finite = true;
  for (size_t channel = 0; channel < channels; channel += kTileChannels) {
    const size_t n = std::min(kTileChannels, channels - channel);
    for (size_t column = 0; column < n_rows; column += kTileRows) {
      const size_t wanted = std::min(kTileRows, n_rows - column);
      ColumnsToStage(columns + channel * width + column, width, width - column, n, wanted, stage, kTileChannels);
      for (size_t row = 0; row < wanted; ++row) {
        const uint16_t* from = stage + row * kTileChannels;
        if (!ScaledHalfToFloat<kAdd>(from, n, scale, rows[column + row] + channel)) finite = false;
      }
    }
  }
  return finite;
}

bool SetTiles(const uint16_t* columns, size_t channels, size_t width, float scale, float* const* rows, size_t n_rows) {
  return UnpackTiles<false>(columns, channels, width, scale, rows, n_rows);
}

bool AddTiles(const uint16_t* columns, size_t channels, size_t width, float scale, float* const* rows, size_t n_rows) {
  return UnpackTiles<true>(columns, channels, width, scale, rows, n_rows);
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

HWY_EXPORT(PackTiles);
HWY_EXPORT(SetTiles);
HWY_EXPORT(AddTiles);
HWY_EXPORT(FiniteRow);

void PackColumns(std::span<const float* const> rows, size_t channels, size_t width, uint16_t* out) {
  NM_DCHECK(rows.size() <= width);
  HWY_DYNAMIC_DISPATCH(PackTiles)(rows.data(), rows.size(), channels, width, out);
}

bool UnpackColumns(const uint16_t* columns, size_t channels, size_t width, float scale, std::span<float* const> rows) {
  NM_DCHECK(rows.size() <= width);
  return HWY_DYNAMIC_DISPATCH(SetTiles)(columns, channels, width, scale, rows.data(), rows.size());
}

bool AddColumns(const uint16_t* columns, size_t channels, size_t width, float scale, std::span<float* const> rows) {
  NM_DCHECK(rows.size() <= width);
  return HWY_DYNAMIC_DISPATCH(AddTiles)(columns, channels, width, scale, rows.data(), rows.size());
}

bool AllFinite(std::span<const uint16_t> halves) {
  return HWY_DYNAMIC_DISPATCH(FiniteRow)(halves.data(), halves.size());
}

}  // namespace npumoe
#endif  // HWY_ONCE
