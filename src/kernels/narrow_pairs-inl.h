// SPDX-License-Identifier: Apache-2.0
// The register tile of narrow_tile-inl.h with Arm's matrix products of bytes (i8mm): smmla adds to 2x2 sums of 32 bits
// the products of two activations and two weight rows, 8 elements each. The same integer sums, and the same float
// operations in the same order, so the same bits as with dot products.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_NARROW_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_NARROW_PAIRS_INL_H_
#undef NPUMOE_KERNELS_NARROW_PAIRS_INL_H_
#else
#define NPUMOE_KERNELS_NARROW_PAIRS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/byte_dots.h"
#include "kernels/narrow_direct-inl.h"
#include "kernels/narrow_tile-inl.h"
#include "kernels/strip.h"

// The i8mm of everything between HWY_PUSH_ATTRIBUTES(NPUMOE_BYTE_MATRICES) and HWY_POP_ATTRIBUTES: called only where
// the CPU has it, whatever CPU the program is compiled for.
#undef NPUMOE_BYTE_MATRICES
#if HWY_COMPILER_CLANG && defined(HWY_TARGET_STR)
#define NPUMOE_BYTE_MATRICES HWY_TARGET_STR ",i8mm"
#elif HWY_COMPILER_CLANG
#define NPUMOE_BYTE_MATRICES "i8mm"
#elif defined(__ARM_FEATURE_DOTPROD)
#define NPUMOE_BYTE_MATRICES "+i8mm"
#else  // the assembler wants 8.2 for it
#define NPUMOE_BYTE_MATRICES "arch=armv8.2-a+crypto+dotprod+i8mm"
#endif

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

// Weight rows that are multiplied at a time: half of the slab.
inline constexpr size_t kPairColumns = 8;

#if HWY_ARCH_ARM_A64

// Integer sums by matrix products, in place of a Dot: its activations, two rows of them side by side.
template <int kBytes>
struct ArmPairs {
  using X = typename ArmDot<kBytes>::X;
  // Of 32 registers, 8 bits keep 12 for integer sums and as many for float sums of 6 activations times kPairColumns, 16
  // bits 16 and 8 of 4.
  static constexpr size_t kTileRows = kBytes == 1 ? 6 : 4;
  static constexpr bool kSigned = true;
  static HWY_INLINE void Store(const VI32 (&q)[kVectorsOfX], X* x) { ArmDot<kBytes>::Store(q, x); }
};
template <int kBytes>
inline constexpr bool kInPairs<ArmPairs<kBytes>> = true;

// Whether to multiply by pairs. One or two activations are not: their weights are multiplied as they are unpacked, four
// elements at a time, and to put eights together takes as many instructions as matrix products save.
inline bool InPairs(const StripArgs& args) { return args.x.rows > kDirectRows && HasByteMatrices(); }

// Eights of a's and b's elements in turn, as smmla takes them: those of the first 16 elements to a, the others to b.
inline void TakeTurns(int8_t* a, int8_t* b) {
  int8_t all[64];
  for (size_t eight = 0; eight < 4; ++eight) {
    std::memcpy(all + 16 * eight, a + 8 * eight, 8);
    std::memcpy(all + 16 * eight + 8, b + 8 * eight, 8);
  }
  std::memcpy(a, all, 32);
  std::memcpy(b, all + 32, 32);
}

// Two rows of n_blocks activations, made by QuantizeBlock, as MultiplyPairs takes them.
template <int kCodeBytes, int kBytes>
void PairUp(XBlock<kBytes, kCodeBytes>* a, XBlock<kBytes, kCodeBytes>* b, size_t n_blocks) {
  for (size_t block = 0; block < n_blocks; ++block) {
    for (size_t at = 0; at < kCodeBytes; at += 32) TakeTurns(a[block].codes + at, b[block].codes + at);
  }
}
// The last of an odd number of rows: a row of zeros beside it, of which no more than its codes is read.
template <int kCodeBytes, int kBytes>
void PairWithZeros(XBlock<kBytes, kCodeBytes>* a, XBlock<kBytes, kCodeBytes>* zeros, size_t n_blocks) {
  for (size_t block = 0; block < n_blocks; ++block) std::memset(zeros[block].codes, 0, kCodeBytes);
  PairUp(a, zeros, n_blocks);
}

#endif  // HWY_ARCH_ARM_A64

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#if HWY_ARCH_ARM_A64

HWY_PUSH_ATTRIBUTES(NPUMOE_BYTE_MATRICES)
namespace npumoe {
namespace HWY_NAMESPACE {

// No lambdas here: they would have to be inlined into functions that are compiled without i8mm.

// Lanes: row 0 of x times rows 0 and 1 of w, row 1 of x times them. As text where the compiler hides the intrinsic.
HWY_INLINE int32x4_t MatrixOfBytes(int32x4_t sums, int8x16_t x, int8x16_t w) {
#if defined(__ARM_FEATURE_MATMUL_INT8) || HWY_COMPILER_GCC_ACTUAL
  return vmmlaq_s32(sums, x, w);
#else
  asm("smmla %0.4s, %1.16b, %2.16b" : "+w"(sums) : "w"(x), "w"(w));
  return sums;
#endif
}

// Sums of one group: two activations times two weight rows.
template <int kBytes>
struct PairSum;

// What `start` of two activations adds, for both weight rows.
HWY_INLINE int32x4_t StartOf(int32_t a, int32_t b) { return vcombine_s32(vdup_n_s32(a), vdup_n_s32(b)); }

template <>
struct PairSum<1> {
  int32x4_t sums;
  HWY_INLINE void Start(int32x4_t start) { sums = start; }
  HWY_INLINE void Add(const int8_t* x, int8x16_t w) { sums = MatrixOfBytes(sums, vld1q_s8(x), w); }
  HWY_INLINE int32x4_t Total() const { return sums; }
};

template <>
struct PairSum<2> {
  int32x4_t high, low;
  HWY_INLINE void Start(int32x4_t start) {
    high = vdupq_n_s32(0);
    low = start;
  }
  HWY_INLINE void Add(const int8_t* x, int8x16_t w) {
    high = MatrixOfBytes(high, vld1q_s8(x), w);
    low = MatrixOfBytes(low, vld1q_s8(x + 32), w);
  }
  HWY_INLINE int32x4_t Total() const { return vaddq_s32(vshlq_n_s32(high, 8), low); }
};

// The first or second (odd) activation of two times four weight rows, from the sums with the first and the last two.
HWY_INLINE VI32 RowOf(bool odd, int32x4_t first, int32x4_t last) {
  const int64x2_t a = vreinterpretq_s64_s32(first), b = vreinterpretq_s64_s32(last);
  return VI32{vreinterpretq_s32_s64(odd ? vzip2q_s64(a, b) : vzip1q_s64(a, b))};
}

// kRows activations times 8 of the slab's 16 weight rows, from `column` on.
template <typename Dot, int kRows, int kGroups, bool kOffset>
HWY_NOINLINE void MultiplyPairs(const Tile<Dot>& tile, size_t column) {
  constexpr size_t kEights = 4 / kGroups;  // of elements per group
  constexpr size_t kPairs = (kRows + 1) / 2, kVectors = kPairColumns / kLanes;
  const F32 d;
  VF32 acc[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      acc[r][v] = tile.add ? hn::LoadU(d, tile.y + r * tile.y_stride + column + kLanes * v) : hn::Zero(d);
    }
  }
  Ahead ahead = *tile.ahead;
  for (size_t block = 0; block < tile.n_blocks; ++block) {
    ahead.Step();
    const auto* x = tile.x + block;
    const uint8_t* codes = tile.slab.codes + 512 * block + 8 * column;
    HWY_UNROLL(2) for (size_t group = 0; group < kGroups; ++group) {
      PairSum<Dot::X::kBytes> sums[kPairs][kPairColumns / 2];
      HWY_UNROLL(3) for (size_t p = 0; p < kPairs; ++p) {
        // The row beside the last of an odd number has codes only.
        const size_t a = 2 * p, b = a + 1 < kRows ? a + 1 : a;
        const int32x4_t start = StartOf(x[a * tile.pitch].start[group], x[b * tile.pitch].start[group]);
        for (auto& sum : sums[p]) sum.Start(start);
      }
      HWY_UNROLL(4) for (size_t eight = kEights * group; eight < kEights * (group + 1); ++eight) {
        HWY_UNROLL(4) for (size_t c = 0; c < kPairColumns / 2; ++c) {
          const int8x16_t w = vreinterpretq_s8_u8(vld1q_u8(codes + 128 * eight + 16 * c));
          HWY_UNROLL(3) for (size_t p = 0; p < kPairs; ++p) {
            sums[p][c].Add(x[(2 * p + eight / 2) * tile.pitch].codes + 16 * (eight % 2), w);
          }
        }
      }
      const size_t first = kSlabRows * (kGroups * block + group) + column;
      HWY_UNROLL(2) for (size_t v = 0; v < kVectors; ++v) {
        const VF32 scale = hn::Load(d, tile.slab.scales + first + kLanes * v);
        HWY_UNROLL(6) for (size_t r = 0; r < kRows; ++r) {
          const auto& of = x[r * tile.pitch];
          const auto& pair = sums[r / 2];
          const VI32 total = RowOf(r % 2 != 0, pair[2 * v].Total(), pair[2 * v + 1].Total());
          acc[r][v] = hn::MulAdd(ScaledSum(of, total), scale, acc[r][v]);
          if constexpr (kOffset) {
            const VF32 offset = hn::Load(d, tile.slab.offsets + first + kLanes * v);
            acc[r][v] = hn::MulAdd(hn::Set(d, of.sum[group]), offset, acc[r][v]);
          }
        }
      }
    }
  }
  *tile.ahead = ahead;
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(acc[r][v], d, tile.y + r * tile.y_stride + column + kLanes * v);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_POP_ATTRIBUTES

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

// With 1 to Dot::kTileRows activations.
template <typename Dot, int kGroups, bool kOffset>
requires(kInPairs<Dot>) void MultiplyTile(const Tile<Dot>& tile, size_t n_rows) {
  ForEach<Dot::kTileRows>([&](auto before) NPUMOE_NARROW_LAMBDA {
    if (n_rows != before + 1) return;
    for (size_t column = 0; column < kSlabRows; column += kPairColumns) {
      MultiplyPairs<Dot, before + 1, kGroups, kOffset>(tile, column);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_ARCH_ARM_A64
#endif  // per-target include guard
