// SPDX-License-Identifier: Apache-2.0
// The register tile: kRows activations times kCols weight rows, lanes along K.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_TILE_INL_H_
#undef NPUMOE_KERNELS_TILE_INL_H_
#else
#define NPUMOE_KERNELS_TILE_INL_H_
#endif

#include <cstddef>
#include <cstring>
#include <utility>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using TileF32 = hn::ScalableTag<float>;
using TileV = hn::VFromD<TileF32>;

// Accumulators plus the operands of one step fit the register file: 4 * 6 + 4 + 1 of 32, 2 * 6 + 2 + 1 of 16.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR
inline constexpr size_t kTileRows = 2;
#else
inline constexpr size_t kTileRows = 4;
#endif
inline constexpr size_t kTileCols = 6;

// The first n lanes from p, zeros above; n < Lanes. Reads nothing beyond.
HWY_INLINE TileV LoadTail(TileF32 d, const float* p, size_t n) {
  alignas(64) float lanes[hn::MaxLanes(d)] = {};
  std::memcpy(lanes, p, n * sizeof(float));
  return hn::Load(d, lanes);
}

template <size_t... kI>
HWY_INLINE void MulAddRow(TileV x, const TileV (&w)[sizeof...(kI)], TileV (&acc)[sizeof...(kI)],
                          std::index_sequence<kI...>) {
  ((acc[kI] = hn::MulAdd(x, w[kI], acc[kI])), ...);
}

// sums[r * kCols + c] = sum over i < k of x[r][i] * w[c][i]. Lane l of an accumulator takes i = l, l + Lanes, ... in
// order; the lanes are then added in a fixed order: the same for every tile shape.
template <size_t kRows, size_t kCols>
HWY_INLINE void Tile(const float* const* x, const float* const* w, size_t k, float* sums) {
  const TileF32 d;
  const size_t lanes = hn::Lanes(d);
  constexpr auto kAll = std::make_index_sequence<kCols>();
  TileV acc[kRows][kCols];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < kCols; ++c) acc[r][c] = hn::Zero(d);
  }
  const float* xs[kRows];
  const float* ws[kCols];
  for (size_t r = 0; r < kRows; ++r) xs[r] = x[r];
  for (size_t c = 0; c < kCols; ++c) ws[c] = w[c];
  size_t i = 0;
  for (; i + lanes <= k; i += lanes) {
    TileV wv[kCols];
    for (size_t c = 0; c < kCols; ++c) wv[c] = hn::LoadU(d, ws[c] + i);
    for (size_t r = 0; r < kRows; ++r) MulAddRow(hn::LoadU(d, xs[r] + i), wv, acc[r], kAll);
  }
  if (i < k) {
    TileV wv[kCols];
    for (size_t c = 0; c < kCols; ++c) wv[c] = LoadTail(d, ws[c] + i, k - i);
    for (size_t r = 0; r < kRows; ++r) MulAddRow(LoadTail(d, xs[r] + i, k - i), wv, acc[r], kAll);
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < kCols; ++c) sums[r * kCols + c] = hn::GetLane(hn::SumOfLanes(d, acc[r][c]));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
