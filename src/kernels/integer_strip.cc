// SPDX-License-Identifier: Apache-2.0
#include "kernels/integer_strip.h"

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "kernels/byte_dots.h"
#include "kernels/integer_format.h"
#include "kernels/narrow_strip.h"

#define HWY_WANT_AVX3_DL
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/integer_strip.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/integer_decode-inl.h"
#include "kernels/integer_direct-inl.h"
#include "kernels/integer_tile-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace npumoe {
namespace HWY_NAMESPACE {

namespace {

// Blocks from one row of x to the next: one more than there are, or rows of a power of two would share a cache set.
size_t Pitch(size_t n_blocks) { return n_blocks + 1; }

// Everything RunIntegerStrip keeps in its scratch.
template <int kBytes>
struct Scratch {
  XBlock<kBytes>* x;  // [panel rows, Pitch(K)]
  Slab slabs[kSlabs];
  std::byte* tail;  // 16 rows of one piece, for a slab that hangs over the end of the weights
};
constexpr size_t kTailFloats = kSlabRows * kMaxSlabBlocks * sizeof(BlockQ8_0) / sizeof(float);

template <int kBytes>
Scratch<kBytes> LayOut(float* scratch) {
  Scratch<kBytes> out;
  for (Slab& slab : out.slabs) {
    slab.codes = reinterpret_cast<uint8_t*>(scratch);
    slab.scales = scratch + kMaxSlabBlocks * 512 / sizeof(float);
    slab.offsets = slab.scales + kMaxSlabBlocks * 2 * kSlabRows;
    scratch += kSlabFloats;
  }
  out.tail = reinterpret_cast<std::byte*>(scratch);
  out.x = reinterpret_cast<XBlock<kBytes>*>(scratch + kTailFloats);
  return out;
}

// Rows [first, first + n_rows) of w, n_rows <= 16, over n_blocks 32-element blocks from block k0 on.
template <typename Block>
void DecodeSlab(const StripArgs& args, size_t first, size_t n_rows, size_t k0, size_t n_blocks, std::byte* tail,
                const Slab& slab) {
  constexpr size_t kPer = Format<Block>::kElems / 32;
  SlabRows rows = {args.w.data + first * args.row_bytes + k0 / kPer * sizeof(Block), args.row_bytes};
  if (n_rows < kSlabRows) {
    rows = CopyRows(rows, n_rows, n_blocks / kPer * sizeof(Block), tail);
  }
  if constexpr (kPer == 1) {
    DecodeSlab32<Block>(rows, n_blocks, slab);
  } else {
    DecodeSlab256<Block>(rows, n_blocks, slab);
  }
}

// This piece of the weight rows that follow `first`'s, while all of x is multiplied.
template <typename Block>
Ahead NextColumns(const StripArgs& args, size_t first, size_t k0, size_t n_blocks) {
  constexpr size_t kPer = Format<Block>::kElems / 32;
  const size_t next = first + kIntegerStripStep, end = args.first + args.n_rows;
  if (next >= end) return {};
  const SlabRows rows = {args.w.data + next * args.row_bytes + k0 / kPer * sizeof(Block), args.row_bytes};
  return {rows, std::min(kIntegerStripStep, end - next), n_blocks / kPer * sizeof(Block),
          n_blocks * CeilDiv(args.x.rows, kTileRows)};
}

template <typename Block, int kBytes>
void MultiplyColumns(const StripArgs& args, const Scratch<kBytes>& scratch, size_t first, size_t n_cols) {
  constexpr int kGroups = Format<Block>::kGroups;
  constexpr bool kOffset = Format<Block>::kOffset;
  const size_t all_blocks = args.x.cols / 32;
  Tile<kBytes> tile = {};
  tile.pitch = Pitch(all_blocks);
  tile.codes = scratch.slabs[0].codes;
  tile.scales = scratch.slabs[0].scales;
  tile.offsets = scratch.slabs[0].offsets;
  tile.y_stride = args.y.stride;
  for (size_t s = 0; s < kSlabs; ++s) {
    const size_t left = n_cols > kSlabRows * s ? n_cols - kSlabRows * s : 0;
    tile.columns[s] = static_cast<__mmask16>(left >= kSlabRows ? 0xffffu : (1u << left) - 1u);
  }
  for (size_t k0 = 0; k0 == 0 || k0 < all_blocks; k0 += kMaxSlabBlocks) {
    tile.n_blocks = std::min(kMaxSlabBlocks, all_blocks - k0);
    tile.add = k0 != 0;
    for (size_t s = 0; s < kSlabs && kSlabRows * s < n_cols; ++s) {
      DecodeSlab<Block>(args, first + kSlabRows * s, std::min(kSlabRows, n_cols - kSlabRows * s), k0, tile.n_blocks,
                        scratch.tail, scratch.slabs[s]);
    }
    Ahead ahead = NextColumns<Block>(args, first, k0, tile.n_blocks);
    tile.ahead = &ahead;
    for (size_t row = 0; row < args.x.rows;) {
      // Nearly equal tiles: one of few rows cannot fill the multipliers.
      const size_t left = args.x.rows - row, rows = CeilDiv(left, CeilDiv(left, kTileRows));
      tile.x = scratch.x + row * tile.pitch + k0;
      tile.y = args.y.Row(row) + first;
      switch (rows) {
        case 1:
          MultiplyTile<1, kGroups, kOffset>(tile);
          break;
        case 2:
          MultiplyTile<2, kGroups, kOffset>(tile);
          break;
        case 3:
          MultiplyTile<3, kGroups, kOffset>(tile);
          break;
        case 4:
          MultiplyTile<4, kGroups, kOffset>(tile);
          break;
        case 5:
          MultiplyTile<5, kGroups, kOffset>(tile);
          break;
        default:
          MultiplyTile<6, kGroups, kOffset>(tile);
          break;
      }
      row += rows;
    }
  }
}

// As MultiplyColumns, for at most kDirectRowsOf<Block> activations. Returns how many of the n_cols weight rows are
// done: whole sixteens.
template <typename Block, int kBytes>
size_t MultiplyFew(const StripArgs& args, const Scratch<kBytes>& scratch, size_t first, size_t n_cols) {
  Direct<kBytes> direct = {};
  direct.n_blocks = args.x.cols / 32;
  for (size_t r = 0; r < args.x.rows; ++r) direct.x[r] = scratch.x + r * Pitch(direct.n_blocks);
  size_t n = 0;
  for (; n + kSlabRows <= n_cols; n += kSlabRows) {
    direct.rows = {args.w.data + (first + n) * args.row_bytes, args.row_bytes};
    direct.ahead = n + 2 * kSlabRows <= n_cols;
    for (size_t r = 0; r < args.x.rows; ++r) direct.y[r] = args.y.Row(r) + first + n;
    MultiplyDirect<Block>(direct, args.x.rows);
  }
  return n;
}

template <typename Block, int kBytes>
HWY_NOINLINE void MultiplyStrip(const StripArgs& args, bool prepared) {
  NM_DCHECK(args.x.rows <= IntegerPanelRows(kBytes == 1 ? Activations::k8Bits : Activations::k16Bits));
  const size_t n_blocks = args.x.cols / 32;
  const Scratch<kBytes> scratch = LayOut<kBytes>(args.scratch);
  for (size_t r = 0; r < args.x.rows && !prepared; ++r) {
    const float* x = args.XRow(r);
    XBlock<kBytes>* out = scratch.x + r * Pitch(n_blocks);
    for (size_t b = 0; b < n_blocks; ++b) {
      QuantizeBlock<Format<Block>::kGroups>(x + 32 * b, Format<Block>::kZero, out + b);
    }
  }
  const bool few = args.x.rows != 0 && args.x.rows <= kDirectRowsOf<Block>;
  size_t n = few ? MultiplyFew<Block>(args, scratch, args.first, args.n_rows) : 0;
  for (; n < args.n_rows; n += kIntegerStripStep) {
    MultiplyColumns<Block, kBytes>(args, scratch, args.first + n, std::min(kIntegerStripStep, args.n_rows - n));
  }
}

}  // namespace

void RunIntegerStripTarget(const StripArgs& args, Activations activations, bool prepared) {
  const bool known = WithIntegerFormat(args.w.dtype, [&]<typename Block>() {
    activations == Activations::k8Bits ? MultiplyStrip<Block, 1>(args, prepared)
                                       : MultiplyStrip<Block, 2>(args, prepared);
  });
  NM_CHECK(known);
}

bool HasIntegerStripTarget(DType dtype) { return HasIntegerFormat(dtype); }

size_t IntegerScratchFloatsTarget(size_t max_inner, Activations activations) {
  const size_t block = activations == Activations::k8Bits ? sizeof(XBlock<1>) : sizeof(XBlock<2>);
  return kSlabs * kSlabFloats + kTailFloats +
         IntegerPanelRows(activations) * Pitch(max_inner / 32) * block / sizeof(float);
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_POP_ATTRIBUTES

#elif HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

void RunIntegerStripTarget(const StripArgs& args, Activations activations, bool prepared) {
  activations == Activations::k8Bits ? RunNarrowStrip8(args, prepared) : RunNarrowStrip16(args, prepared);
}

// AVX2 has what it takes; NEON alone has no dot products.
bool HasIntegerStripTarget(DType dtype) { return (HWY_ARCH_X86 || HasByteDots()) && HasIntegerFormat(dtype); }

size_t IntegerScratchFloatsTarget(size_t max_inner, Activations activations) {
  if (!HasIntegerStripTarget(DType::kQ8_0)) return 0;
  return activations == Activations::k8Bits ? NarrowScratchFloats8(max_inner) : NarrowScratchFloats16(max_inner);
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#else

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

void RunIntegerStripTarget(const StripArgs&, Activations, bool) { NM_CHECK(false && "HasIntegerStrip said no"); }
bool HasIntegerStripTarget(DType) { return false; }
size_t IntegerScratchFloatsTarget(size_t, Activations) { return 0; }

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX3_DL

#if HWY_ONCE
namespace npumoe {

HWY_EXPORT(RunIntegerStripTarget);
HWY_EXPORT(HasIntegerStripTarget);
HWY_EXPORT(IntegerScratchFloatsTarget);

bool HasIntegerStrip(DType dtype) { return HWY_DYNAMIC_DISPATCH(HasIntegerStripTarget)(dtype); }
size_t IntegerScratchFloats(size_t max_inner, Activations activations) {
  return HWY_DYNAMIC_DISPATCH(IntegerScratchFloatsTarget)(max_inner, activations);
}
void RunIntegerStrip(const StripArgs& args, Activations activations, bool prepared) {
  HWY_DYNAMIC_DISPATCH(RunIntegerStripTarget)(args, activations, prepared);
}

}  // namespace npumoe
#endif  // HWY_ONCE
