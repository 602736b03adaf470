// SPDX-License-Identifier: Apache-2.0
// The register tile: kRows activations times kTileCols weight rows, lanes along K.

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

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using TileF32 = hn::ScalableTag<float>;
using TileV = hn::VFromD<TileF32>;

// Accumulators and the operands of a step fit the register file: 3 * 8 + 3 + 1 of 32, 3 * 4 + 3 + 1 of 16. One row
// alone still has 8 independent chains where two units of latency 4 want them.
inline constexpr size_t kTileRows = 3;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_ARCH_ARM_A64
inline constexpr size_t kTileCols = 8;
#else
inline constexpr size_t kTileCols = 4;
#endif

// The first n lanes from p, zeros above; n < Lanes. Reads nothing beyond.
HWY_INLINE TileV LoadTail(TileF32 d, const float* p, size_t n) {
  alignas(64) float lanes[hn::MaxLanes(d)] = {};
  std::memcpy(lanes, p, n * sizeof(float));
  return hn::Load(d, lanes);
}

// ---- Sums over lanes. Each Fold adds two halves of a and of b and puts both results in one vector; every sum goes
// through the same additions wherever its accumulator stands: halves of the vector, halves of a half, then in a block
// of four (0 + 2) + (1 + 3).

#if HWY_TARGET != HWY_SCALAR

// Per block: [a0 + a2, b0 + b2, a1 + a3, b1 + b3].
HWY_INLINE TileV FoldLanes(TileV a, TileV b) {
  return hn::Add(hn::InterleaveLower(TileF32(), a, b), hn::InterleaveUpper(TileF32(), a, b));
}

// u = FoldLanes(a, b), v = FoldLanes(c, e): per block the four sums [a, b, c, e].
HWY_INLINE TileV FoldPairs(TileV u, TileV v) {
  const TileF32 d;
  const hn::Repartition<uint64_t, TileF32> d64;
  const auto u64 = hn::BitCast(d64, u), v64 = hn::BitCast(d64, v);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, u64, v64)),
                 hn::BitCast(d, hn::InterleaveUpper(d64, u64, v64)));
}

#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

// Of each pair of blocks: [a0 + a1, b0 + b1].
HWY_INLINE TileV FoldBlocks(TileV a, TileV b) {
  return hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
}

// u = FoldLanes(a, b): the pairs [a, b] of all blocks, packed into the lower half.
HWY_INLINE TileV PackPairs(TileV u) {
  const TileF32 d;
  const hn::Repartition<uint64_t, TileF32> d64;
  const auto pairs = hn::BitCast(d64, hn::Add(u, hn::Shuffle1032(u)));
  return hn::BitCast(d, hn::ConcatEven(d64, pairs, pairs));
}

#endif

// sums[c] = the sum of the lanes of acc[c].
HWY_INLINE void SumLanes(const TileV (&acc)[kTileCols], float* HWY_RESTRICT sums) {
  const TileF32 d;
#if HWY_TARGET == HWY_SCALAR
  for (size_t c = 0; c < kTileCols; ++c) sums[c] = hn::GetLane(acc[c]);
  static_cast<void>(d);
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const auto fold = [d](TileV a, TileV b)
                        HWY_ATTR { return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a)); };
  const TileV even = FoldBlocks(fold(acc[0], acc[4]), fold(acc[2], acc[6]));  // blocks of 0 2 4 6
  const TileV odd = FoldBlocks(fold(acc[1], acc[5]), fold(acc[3], acc[7]));   // blocks of 1 3 5 7
  const hn::Half<TileF32> half;
  hn::StoreU(hn::LowerHalf(half, PackPairs(FoldLanes(even, odd))), half, sums);
#elif HWY_TARGET == HWY_AVX2
  const hn::Half<TileF32> half;
  const TileV pairs = FoldLanes(FoldBlocks(acc[0], acc[2]), FoldBlocks(acc[1], acc[3]));
  hn::StoreU(hn::LowerHalf(half, PackPairs(pairs)), half, sums);
#else
  for (size_t c = 0; c < kTileCols; c += 4) {
    hn::StoreU(FoldPairs(FoldLanes(acc[c], acc[c + 1]), FoldLanes(acc[c + 2], acc[c + 3])), d, sums + c);
  }
#endif
}

// ---- The tile

// GCC 12 under register pressure reads a weight vector from memory once per multiply-add instead of once: three loads
// in place of one, and the loads become the limit (measured: 140 instead of 166 GFLOP/s). The empty statement makes the
// value something only a register holds.
HWY_INLINE void KeepInRegister(TileV& v) {
#if HWY_COMPILER_GCC_ACTUAL && (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL)
  asm("" : "+v"(v.raw));
#else
  static_cast<void>(v);
#endif
}

template <size_t kRows, size_t... kI>
HWY_INLINE void MulAddColumn(const TileV (&x)[kRows], TileV w, TileV (&acc)[kRows][kTileCols], size_t c,
                             std::index_sequence<kI...>) {
  ((acc[kI][c] = hn::MulAdd(x[kI], w, acc[kI][c])), ...);
}

// sums[r * kTileCols + c] = sum over i < k of x[r][i] * w[c][i]. Lane l of an accumulator takes i = l, l + Lanes, ...
// in order, so the result does not depend on the shape of the tile.
template <size_t kRows>
HWY_INLINE void Tile(const float* const* x, const float* const* w, size_t k, size_t ahead, float* sums) {
  const TileF32 d;
  const size_t lanes = hn::Lanes(d);
  constexpr auto kAll = std::make_index_sequence<kRows>();
  TileV acc[kRows][kTileCols];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < kTileCols; ++c) acc[r][c] = hn::Zero(d);
  }
  size_t i = 0;
  for (; i + lanes <= k; i += lanes) {
    TileV xv[kRows];
    for (size_t r = 0; r < kRows; ++r) xv[r] = hn::LoadU(d, x[r] + i);
    for (size_t r = 0; r < kRows; ++r) hwy::Prefetch(x[r] + ahead + i);
    for (size_t c = 0; c < kTileCols; ++c) {
      TileV wv = hn::LoadU(d, w[c] + i);
      KeepInRegister(wv);
      MulAddColumn(xv, wv, acc, c, kAll);
    }
  }
  if (i < k) {
    TileV xv[kRows];
    for (size_t r = 0; r < kRows; ++r) xv[r] = LoadTail(d, x[r] + i, k - i);
    for (size_t c = 0; c < kTileCols; ++c) MulAddColumn(xv, LoadTail(d, w[c] + i, k - i), acc, c, kAll);
  }
  for (size_t r = 0; r < kRows; ++r) SumLanes(acc[r], sums + r * kTileCols);
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
