// SPDX-License-Identifier: Apache-2.0
// The integer path (integer_strip.h) without AVX-512: vectors of 8 weight rows with AVX2, of 4 with Arm's dot products,
// and two by two with Arm's matrix products.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_INTEGER_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_INTEGER_NARROW_INL_H_
#undef NPUMOE_KERNELS_INTEGER_NARROW_INL_H_
#else
#define NPUMOE_KERNELS_INTEGER_NARROW_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "hwy/highway.h"
#include "kernels/integer_strip.h"
#include "kernels/narrow_direct-inl.h"
#include "kernels/narrow_pairs-inl.h"
#include "kernels/narrow_tile-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

// Blocks from one row of x to the next: one more than there are, or rows of a power of two would share a cache set.
inline size_t NarrowPitch(size_t n_blocks) { return n_blocks + 1; }

// 16 rows of one piece, for a slab that hangs over the end of the weights, and a tile of its outputs.
inline constexpr size_t kTailFloats = kSlabRows * kMaxSlabBlocks * sizeof(BlockQ8_0) / sizeof(float);
inline constexpr size_t kTailOutputs = kIntegerPanelStep * kSlabRows;

// Everything RunIntegerStrip keeps in its scratch.
template <typename Dot>
struct Scratch {
  typename Dot::X* x;  // [panel rows, NarrowPitch(K)]
  Slab slab;
  std::byte* tail;
  float* tail_y;
  static_assert(Dot::kTileRows <= kIntegerPanelStep);

  explicit Scratch(float* at) {
    slab.codes = reinterpret_cast<uint8_t*>(at);
    slab.scales = at + kMaxSlabBlocks * 512 / sizeof(float);
    slab.offsets = slab.scales + kMaxSlabBlocks * 2 * kSlabRows;
    tail = reinterpret_cast<std::byte*>(at + kSlabFloats);
    tail_y = at + kSlabFloats + kTailFloats;
    x = reinterpret_cast<typename Dot::X*>(tail_y + kTailOutputs);
  }
};

template <typename Dot>
size_t ScratchFloatsOf(size_t max_inner, Activations activations) {
  return kSlabFloats + kTailFloats + kTailOutputs +
         IntegerPanelRows(activations) * NarrowPitch(max_inner / 32) * sizeof(typename Dot::X) / sizeof(float);
}

// This piece of the weight rows that follow `first`'s, while all of x is multiplied.
template <typename Dot, typename Block>
Ahead NextColumns(const StripArgs& args, size_t first, size_t k0, size_t n_blocks) {
  constexpr size_t kPer = Format<Block>::kElems / 32;
  const size_t next = first + kSlabRows, end = args.first + args.n_rows;
  if (next >= end) return {};
  const SlabRows rows = {args.w.data + next * args.row_bytes + k0 / kPer * sizeof(Block), args.row_bytes};
  const size_t n_tiles = CeilDiv(args.x.rows, Dot::kTileRows) * (kInPairs<Dot> ? kSlabRows / kPairColumns : 1);
  return {rows, std::min(kSlabRows, end - next), n_blocks / kPer * sizeof(Block), n_blocks * n_tiles};
}

// Rows of the next tile where `left` are left: tiles are nearly equal, as one of few rows cannot fill the multipliers.
template <typename Dot>
size_t TileRows(size_t left) {
  const size_t n = CeilDiv(left, CeilDiv(left, Dot::kTileRows));
  return kInPairs<Dot> ? std::min(left, n + n % 2) : n;
}

// The tile's activations from row on, times n_cols <= 16 weight rows from `first` on.
template <typename Dot, typename Block>
void MultiplyTileAt(const StripArgs& args, Tile<Dot>& tile, size_t row, size_t n_rows, size_t first, size_t n_cols,
                    float* tail_y) {
  constexpr int kGroups = Format<Block>::kGroups;
  constexpr bool kOffset = Format<Block>::kOffset;
  tile.y = args.y.Row(row) + first;
  tile.y_stride = args.y.stride;
  if (HWY_LIKELY(n_cols == kSlabRows)) return MultiplyTile<Dot, kGroups, kOffset>(tile, n_rows);
  float* const y = tile.y;
  tile.y = tail_y;
  tile.y_stride = kSlabRows;
  for (size_t r = 0; r < n_rows && tile.add; ++r) std::copy_n(y + r * args.y.stride, n_cols, tail_y + r * kSlabRows);
  MultiplyTile<Dot, kGroups, kOffset>(tile, n_rows);
  for (size_t r = 0; r < n_rows; ++r) std::copy_n(tail_y + r * kSlabRows, n_cols, y + r * args.y.stride);
}

// All activations times n_cols <= 16 weight rows from `first` on.
template <typename Dot, typename Block>
void MultiplyColumns(const StripArgs& args, const Scratch<Dot>& scratch, size_t first, size_t n_cols) {
  constexpr size_t kPer = Format<Block>::kElems / 32;
  const size_t all_blocks = args.x.cols / 32;
  Tile<Dot> tile = {};
  tile.pitch = NarrowPitch(all_blocks);
  tile.slab = scratch.slab;
  for (size_t k0 = 0; k0 == 0 || k0 < all_blocks; k0 += kMaxSlabBlocks) {
    tile.n_blocks = std::min(kMaxSlabBlocks, all_blocks - k0);
    tile.add = k0 != 0;
    SlabRows rows = {args.w.data + first * args.row_bytes + k0 / kPer * sizeof(Block), args.row_bytes};
    if (n_cols < kSlabRows) rows = CopyRows(rows, n_cols, tile.n_blocks / kPer * sizeof(Block), scratch.tail);
    DecodeSlab<Block, Dot::kSigned, kInPairs<Dot>>(rows, tile.n_blocks, scratch.slab);
    Ahead ahead = NextColumns<Dot, Block>(args, first, k0, tile.n_blocks);
    tile.ahead = &ahead;
    for (size_t row = 0; row < args.x.rows;) {
      const size_t n_rows = TileRows<Dot>(args.x.rows - row);
      tile.x = scratch.x + row * tile.pitch + k0;
      MultiplyTileAt<Dot, Block>(args, tile, row, n_rows, first, n_cols, scratch.tail_y);
      row += n_rows;
    }
  }
}

// For at most kDirectRows activations. Returns how many of the weight rows are done: whole vectors.
template <typename Dot, typename Block>
size_t MultiplyFew(const StripArgs& args, const Scratch<Dot>& scratch) {
  Direct<Dot> direct = {};
  direct.n_blocks = args.x.cols / 32;
  for (size_t r = 0; r < args.x.rows; ++r) direct.x[r] = scratch.x + r * NarrowPitch(direct.n_blocks);
  size_t n = 0;
  for (; n + kLanes <= args.n_rows; n += kLanes) {
    direct.rows = {args.w.data + (args.first + n) * args.row_bytes, args.row_bytes};
    direct.ahead = n + 2 * kLanes <= args.n_rows;
    for (size_t r = 0; r < args.x.rows; ++r) direct.y[r] = args.y.Row(r) + args.first + n;
    MultiplyDirect<Dot, Block>(direct, args.x.rows);
  }
  return n;
}

// Makes integers of all activations.
template <typename Dot, typename Block>
void Prepare(const StripArgs& args, typename Dot::X* out) {
  const size_t n_blocks = args.x.cols / 32, pitch = NarrowPitch(n_blocks);
  for (size_t r = 0; r < args.x.rows; ++r) {
    const float* const x = args.XRow(r);
    for (size_t b = 0; b < n_blocks; ++b) {
      QuantizeBlock<Dot, Format<Block>::kGroups>(x + 32 * b, kZeroOf<Block, Dot::kSigned>,
                                                 out + r * pitch + b);
    }
  }
  if constexpr (kInPairs<Dot>) {
    size_t r = 0;
    for (; r + 2 <= args.x.rows; r += 2) PairUp(out + r * pitch, out + (r + 1) * pitch, n_blocks);
    if (r < args.x.rows) PairWithZeros(out + r * pitch, out + (r + 1) * pitch, n_blocks);
  }
}

template <typename Dot, typename Block>
HWY_NOINLINE void MultiplyStrip(const StripArgs& args, bool prepared) {
  constexpr size_t kPanelRows = IntegerPanelRows(Dot::X::kBytes == 1 ? Activations::k8Bits : Activations::k16Bits);
  static_assert(kPanelRows % 2 == 0);  // room for a row beside the last
  NM_DCHECK(args.x.rows <= kPanelRows);
  const Scratch<Dot> scratch(args.scratch);
  if (!prepared) Prepare<Dot, Block>(args, scratch.x);
  size_t n = 0;
  if constexpr (!kInPairs<Dot>) {
    if (args.x.rows != 0 && args.x.rows <= kDirectRows) n = MultiplyFew<Dot, Block>(args, scratch);
  }
  for (; n < args.n_rows; n += kSlabRows) {
    MultiplyColumns<Dot, Block>(args, scratch, args.first + n, std::min(kSlabRows, args.n_rows - n));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX2 or Arm
#endif  // per-target include guard
