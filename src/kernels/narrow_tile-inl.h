// SPDX-License-Identifier: Apache-2.0
// The register tile of the integer path without AVX-512: a few activations times 16 weight rows that are unpacked
// before. See integer_narrow-inl.h.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_NARROW_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_NARROW_TILE_INL_H_
#undef NPUMOE_KERNELS_NARROW_TILE_INL_H_
#else
#define NPUMOE_KERNELS_NARROW_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/narrow_decode-inl.h"
#include "kernels/narrow_dot-inl.h"
#include "kernels/weight_rows.h"

#if HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

// Codes, scales and offsets of 16 weight rows over some 32-element blocks.
struct Slab {
  uint8_t* codes;  // [blocks, 8, 16, 4]: four consecutive elements of every row; in pairs [blocks, 4, 16, 8]
  float* scales;   // [blocks * groups, 16]
  float* offsets;  // [blocks * groups, 16], for formats that have them
};
// As for AVX-512: the slab stays in a first-level cache.
inline constexpr size_t kMaxSlabBlocks = 16;
inline constexpr size_t kSlabFloats = kMaxSlabBlocks * (512 / sizeof(float) + 4 * kSlabRows);

inline constexpr size_t kSlabVectors = kSlabRows / kLanes;

// Whether activations and weight rows are multiplied two by two, see narrow_pairs-inl.h.
template <typename Dot>
inline constexpr bool kInPairs = false;

// All 16 rows of n_blocks 32-element blocks.
template <typename Block, bool kSigned, bool kPairs>
HWY_NOINLINE void DecodeSlab(const SlabRows& rows, size_t n_blocks, const Slab& slab) {
  constexpr size_t kParts = Format<Block>::kElems / 32;
  constexpr size_t kScales = kParts * Format<Block>::kGroups * kSlabRows;  // per block of the format
  for (size_t first = 0; first < kSlabRows; first += kLanes) {
    const auto* blocks = reinterpret_cast<const Block*>(rows.first + first * rows.stride);  // packed: any address
    for (size_t b = 0; b < n_blocks / kParts; ++b) {
      uint8_t* to = slab.codes + 512 * kParts * b;
      float* scales = slab.scales + kScales * b + first;
      float* offsets = slab.offsets + kScales * b + first;
      VBytes even[kParts];  // words that wait for the next
      const auto store = [&](auto part, auto word, VBytes codes) NPUMOE_NARROW_LAMBDA {
        if constexpr (!kPairs) {
          hn::Store(codes, Bytes(), to + 512 * part + 64 * word + 4 * first);
        } else if constexpr (word % 2 == 0) {
          even[part] = codes;
        } else {
          auto* eights = reinterpret_cast<uint32_t*>(to + 512 * part + 64 * (word - 1) + 8 * first);
          hn::StoreInterleaved2(hn::BitCast(U32(), even[part]), hn::BitCast(U32(), codes), U32(), eights);
        }
      };
      if constexpr (kParts == 1) {
        const ScaleAndOffset of = DecodeScales(blocks + b, rows.stride);
        hn::Store(of.scale, F32(), scales);
        if constexpr (Format<Block>::kOffset) hn::Store(of.offset, F32(), offsets);
        DecodeCodes<kSigned>(blocks + b, rows.stride,
                             [&](auto word, VBytes codes) NPUMOE_NARROW_LAMBDA { store(Constant<0>(), word, codes); });
      } else {
        DecodeSuperScales(blocks + b, rows.stride, scales, offsets, kSlabRows);
        DecodeSuper(blocks + b, rows.stride, store);
      }
    }
  }
}

template <typename Dot>
struct Tile {
  const typename Dot::X* x;  // first row
  size_t pitch;              // blocks from one row to the next
  Slab slab;
  size_t n_blocks;
  float* y;  // first row; 16 outputs
  size_t y_stride;
  bool add;      // to what y holds: all but the first piece of K
  Ahead* ahead;  // one step for each of n_blocks
};

template <typename Dot, int kRows, int kGroups, bool kOffset>
HWY_NOINLINE void MultiplyTile(const Tile<Dot>& tile) {
  constexpr size_t kWords = 8 / kGroups;
  const F32 d;
  VF32 acc[kRows][kSlabVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kSlabVectors; ++v) {
      acc[r][v] = tile.add ? hn::LoadU(d, tile.y + r * tile.y_stride + kLanes * v) : hn::Zero(d);
    }
  }
  Ahead ahead = *tile.ahead;
  for (size_t block = 0; block < tile.n_blocks; ++block) {
    ahead.Step();
    const auto* x = tile.x + block;
    ForEach<kGroups>([&](auto group) NPUMOE_NARROW_LAMBDA {
      constexpr int kGroup = group;
      const uint8_t* codes = tile.slab.codes + 512 * block + 64 * kWords * kGroup;
      typename Dot::Sum sums[kRows][kSlabVectors];
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t v = 0; v < kSlabVectors; ++v) sums[r][v].Start(x[r * tile.pitch], kGroup);
      }
      ForEach<kWords>([&](auto at) NPUMOE_NARROW_LAMBDA {
        typename Dot::Codes w[kSlabVectors];
        for (size_t v = 0; v < kSlabVectors; ++v) {
          w[v] = Dot::Prepare(hn::Load(Bytes(), codes + 64 * at + 4 * kLanes * v));
        }
        for (size_t r = 0; r < kRows; ++r) {
          const auto word = Dot::template WordOf<kWords * kGroup + at>(x[r * tile.pitch]);
          for (size_t v = 0; v < kSlabVectors; ++v) sums[r][v].template Add<at>(w[v], word);
        }
      });
      const size_t first = kSlabRows * (kGroups * block + kGroup);
      for (size_t v = 0; v < kSlabVectors; ++v) {
        const VF32 scale = hn::Load(d, tile.slab.scales + first + kLanes * v);
        for (size_t r = 0; r < kRows; ++r) {
          const auto& of = x[r * tile.pitch];
          acc[r][v] = hn::MulAdd(ScaledSum(of, sums[r][v].Total(of, kGroup)), scale, acc[r][v]);
          if constexpr (kOffset) {
            const VF32 offset = hn::Load(d, tile.slab.offsets + first + kLanes * v);
            acc[r][v] = hn::MulAdd(hn::Set(d, of.sum[kGroup]), offset, acc[r][v]);
          }
        }
      }
    });
  }
  *tile.ahead = ahead;
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kSlabVectors; ++v) hn::StoreU(acc[r][v], d, tile.y + r * tile.y_stride + kLanes * v);
  }
}

// With 1 to Dot::kTileRows activations.
template <typename Dot, int kGroups, bool kOffset>
void MultiplyTile(const Tile<Dot>& tile, size_t n_rows) {
  ForEach<Dot::kTileRows>([&](auto before) NPUMOE_NARROW_LAMBDA {
    if (n_rows == before + 1) MultiplyTile<Dot, before + 1, kGroups, kOffset>(tile);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX2 or Arm
#endif  // per-target include guard
