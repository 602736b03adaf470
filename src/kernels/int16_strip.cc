// SPDX-License-Identifier: Apache-2.0
#include "kernels/int16_strip.h"

#include <algorithm>
#include <cstdint>

#include "base/check.h"

#define HWY_WANT_AVX3_DL
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/int16_strip.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/int16_decode-inl.h"
#include "kernels/int16_rows-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace npumoe {
namespace HWY_NAMESPACE {

// Two slabs are multiplied at a time: an activation byte is broadcast once for 32 weight rows.
constexpr size_t kSlabs = 2;
static_assert(kSlabs * kSlabRows == kInt16StripStep);
constexpr size_t kTileRows = kInt16PanelStep;

struct Tile {
  const XBlock* x[kTileRows];
  const uint8_t* codes[kSlabs];
  const float* scales[kSlabs];
  const float* offsets[kSlabs];
  size_t n_blocks;
  float* y[kTileRows];
  __mmask16 columns[kSlabs];  // which of the 16 outputs exist
  bool add;                   // to what y holds: all but the first piece of K
};

HWY_INLINE __m512i Word(const int8_t* bytes) {
  int32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return _mm512_set1_epi32(word);
}

// One block of 32 elements: kWords words of four codes each, for every row and slab, from word `first` on.
template <int kRows, int kWords>
HWY_INLINE void MultiplyBlock(const Tile& tile, size_t block, int first, int group, __m512i (&sums)[kRows][kSlabs]) {
  const uint8_t* codes0 = tile.codes[0] + 512 * block + 64 * first;
  const uint8_t* codes1 = tile.codes[1] + 512 * block + 64 * first;
  if constexpr (kRows <= 2) {  // two chains per sum, or there would be too few to fill the multipliers
    __m512i low[kRows][kSlabs];
    for (int r = 0; r < kRows; ++r) {
      const XBlock& x = tile.x[r][block];
      sums[r][0] = sums[r][1] = _mm512_set1_epi32(x.zero_high[group]);
      low[r][0] = low[r][1] = _mm512_set1_epi32(x.zero_low[group]);
    }
    for (int t = 0; t < kWords; ++t) {
      const __m512i w0 = _mm512_load_si512(codes0 + 64 * t), w1 = _mm512_load_si512(codes1 + 64 * t);
      for (int r = 0; r < kRows; ++r) {
        const XBlock& x = tile.x[r][block];
        const __m512i high_word = Word(x.high + 4 * (first + t)), low_word = Word(x.low + 4 * (first + t));
        sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], w0, high_word);
        sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], w1, high_word);
        low[r][0] = _mm512_dpbusd_epi32(low[r][0], w0, low_word);
        low[r][1] = _mm512_dpbusd_epi32(low[r][1], w1, low_word);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (size_t s = 0; s < kSlabs; ++s) {
        sums[r][s] = _mm512_add_epi32(_mm512_slli_epi32(sums[r][s], 8), low[r][s]);
      }
    }
    return;
  }
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_set1_epi32(tile.x[r][block].zero_high[group]);
  for (int t = 0; t < kWords; ++t) {
    const __m512i w0 = _mm512_load_si512(codes0 + 64 * t), w1 = _mm512_load_si512(codes1 + 64 * t);
    for (int r = 0; r < kRows; ++r) {
      const __m512i word = Word(tile.x[r][block].high + 4 * (first + t));
      sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], w0, word);
      sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], w1, word);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const __m512i zero_low = _mm512_set1_epi32(tile.x[r][block].zero_low[group]);
    for (size_t s = 0; s < kSlabs; ++s) {
      sums[r][s] = _mm512_add_epi32(_mm512_slli_epi32(sums[r][s], 8), zero_low);
    }
  }
  for (int t = 0; t < kWords; ++t) {
    const __m512i w0 = _mm512_load_si512(codes0 + 64 * t), w1 = _mm512_load_si512(codes1 + 64 * t);
    for (int r = 0; r < kRows; ++r) {
      const __m512i word = Word(tile.x[r][block].low + 4 * (first + t));
      sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], w0, word);
      sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], w1, word);
    }
  }
}

template <int kRows, int kGroups, bool kOffset>
HWY_NOINLINE void MultiplyTile(const Tile& tile) {
  __m512 acc[kRows][kSlabs];
  for (int r = 0; r < kRows; ++r) {
    for (size_t s = 0; s < kSlabs; ++s) {
      acc[r][s] = tile.add ? _mm512_maskz_loadu_ps(tile.columns[s], tile.y[r] + kSlabRows * s) : _mm512_setzero_ps();
    }
  }
  for (size_t block = 0; block < tile.n_blocks; ++block) {
    for (int group = 0; group < kGroups; ++group) {
      __m512i sums[kRows][kSlabs];
      MultiplyBlock<kRows, 8 / kGroups>(tile, block, group * (8 / kGroups), group, sums);
      for (size_t s = 0; s < kSlabs; ++s) {
        const size_t at = kSlabRows * (kGroups * block + static_cast<size_t>(group));
        const __m512 scale = _mm512_load_ps(tile.scales[s] + at);
        for (int r = 0; r < kRows; ++r) {
          const XBlock& x = tile.x[r][block];
          const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][s]), _mm512_set1_ps(x.scale));
          acc[r][s] = _mm512_fmadd_ps(value, scale, acc[r][s]);
          if constexpr (kOffset) {
            const __m512 offset = _mm512_load_ps(tile.offsets[s] + at);
            acc[r][s] = _mm512_fmadd_ps(_mm512_set1_ps(x.sum[group]), offset, acc[r][s]);
          }
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (size_t s = 0; s < kSlabs; ++s) {
      _mm512_mask_storeu_ps(tile.y[r] + kSlabRows * s, tile.columns[s], acc[r][s]);
    }
  }
}

// Everything RunInt16Strip keeps in its scratch.
struct Scratch {
  XBlock* x;  // [kInt16PanelRows, K / 32]
  Slab slabs[kSlabs];
  std::byte* tail;  // 16 rows of one piece, for a slab that hangs over the end of the weights
};
constexpr size_t kSlabFloats = kMaxSlabBlocks * (512 / sizeof(float) + 4 * kSlabRows);
constexpr size_t kTailFloats = kSlabRows * kMaxSlabBlocks * sizeof(BlockQ8_0) / sizeof(float);

Scratch LayOut(float* scratch) {
  Scratch out;
  for (Slab& slab : out.slabs) {
    slab.codes = reinterpret_cast<uint8_t*>(scratch);
    slab.scales = scratch + kMaxSlabBlocks * 512 / sizeof(float);
    slab.offsets = slab.scales + kMaxSlabBlocks * 2 * kSlabRows;
    scratch += kSlabFloats;
  }
  out.tail = reinterpret_cast<std::byte*>(scratch);
  out.x = reinterpret_cast<XBlock*>(scratch + kTailFloats);
  return out;
}

// Rows [first, first + n_rows) of w, n_rows <= 16, over n_blocks 32-element blocks from block k0 on.
template <typename Block>
void DecodeSlab(const StripArgs& args, size_t first, size_t n_rows, size_t k0, size_t n_blocks, std::byte* tail,
                const Slab& slab) {
  constexpr size_t kPer = Format<Block>::kElems / 32;
  SlabRows rows = {args.w.data + first * args.row_bytes + k0 / kPer * sizeof(Block), args.row_bytes};
  size_t rows_ahead = kInt16StripStep;
  if (n_rows < kSlabRows) {
    rows_ahead = 0;
    const size_t bytes = n_blocks / kPer * sizeof(Block);
    for (size_t r = 0; r < kSlabRows; ++r) {
      std::memcpy(tail + r * bytes, rows.first + std::min(r, n_rows - 1) * rows.stride, bytes);
    }
    rows = {tail, bytes};
  }
  if constexpr (kPer == 1) {
    DecodeSlab32<Block>(rows, n_blocks, rows_ahead, slab);
  } else {
    DecodeSlab256<Block>(rows, n_blocks, rows_ahead, slab);
  }
}

template <typename Block>
void MultiplyColumns(const StripArgs& args, const Scratch& scratch, size_t first, size_t n_cols) {
  constexpr int kGroups = Format<Block>::kGroups;
  constexpr bool kOffset = Format<Block>::kOffset;
  const size_t all_blocks = args.x.cols / 32;
  Tile tile = {};
  for (size_t s = 0; s < kSlabs; ++s) {
    const size_t left = n_cols > kSlabRows * s ? n_cols - kSlabRows * s : 0;
    tile.columns[s] = static_cast<__mmask16>(left >= kSlabRows ? 0xffffu : (1u << left) - 1u);
    const Slab& slab = scratch.slabs[left == 0 ? 0 : s];  // a slab that does not exist is the first again
    tile.codes[s] = slab.codes;
    tile.scales[s] = slab.scales;
    tile.offsets[s] = slab.offsets;
  }
  for (size_t k0 = 0; k0 == 0 || k0 < all_blocks; k0 += kMaxSlabBlocks) {
    tile.n_blocks = std::min(kMaxSlabBlocks, all_blocks - k0);
    tile.add = k0 != 0;
    for (size_t s = 0; s < kSlabs && kSlabRows * s < n_cols; ++s) {
      DecodeSlab<Block>(args, first + kSlabRows * s, std::min(kSlabRows, n_cols - kSlabRows * s), k0, tile.n_blocks,
                        scratch.tail, scratch.slabs[s]);
    }
    for (size_t row = 0; row < args.x.rows;) {
      const size_t rows = std::min(args.x.rows - row, kTileRows);
      for (size_t r = 0; r < rows; ++r) {
        tile.x[r] = scratch.x + (row + r) * all_blocks + k0;
        tile.y[r] = args.y.Row(row + r) + first;
      }
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

template <typename Block>
HWY_NOINLINE void MultiplyStrip(const StripArgs& args) {
  NM_DCHECK(args.x.rows <= kInt16PanelRows);
  const size_t n_blocks = args.x.cols / 32;
  const Scratch scratch = LayOut(args.scratch);
  for (size_t r = 0; r < args.x.rows; ++r) {
    const float* x = args.x.Row(r);
    XBlock* out = scratch.x + r * n_blocks;
    for (size_t b = 0; b < n_blocks; ++b) {
      QuantizeBlock<Format<Block>::kGroups>(x + 32 * b, Format<Block>::kZero, out + b);
    }
  }
  for (size_t n = 0; n < args.n_rows; n += kInt16StripStep) {
    MultiplyColumns<Block>(args, scratch, args.first + n, std::min(kInt16StripStep, args.n_rows - n));
  }
}

void RunInt16StripTarget(const StripArgs& args) {
  switch (args.w.dtype) {
    case DType::kQ8_0:
      return MultiplyStrip<BlockQ8_0>(args);
    case DType::kQ4_0:
      return MultiplyStrip<BlockQ4_0>(args);
    case DType::kQ4_1:
      return MultiplyStrip<BlockQ4_1>(args);
    case DType::kQ5_0:
      return MultiplyStrip<BlockQ5_0>(args);
    case DType::kQ5_1:
      return MultiplyStrip<BlockQ5_1>(args);
    case DType::kQ4_K:
      return MultiplyStrip<BlockQ4K>(args);
    case DType::kQ5_K:
      return MultiplyStrip<BlockQ5K>(args);
    case DType::kQ6_K:
      return MultiplyStrip<BlockQ6K>(args);
    case DType::kIQ4_NL:
      return MultiplyStrip<BlockIQ4NL>(args);
    case DType::kMXFP4:
      return MultiplyStrip<BlockMXFP4>(args);
    default:
      NM_CHECK(false && "HasInt16Strip said no");
  }
}

bool HasInt16StripTarget(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kIQ4_NL:
    case DType::kMXFP4:
      return true;
    default:
      return false;
  }
}

size_t Int16ScratchFloatsTarget(size_t max_inner) {
  return kSlabs * kSlabFloats + kTailFloats + kInt16PanelRows * (max_inner / 32) * sizeof(XBlock) / sizeof(float);
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_POP_ATTRIBUTES

#else

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

void RunInt16StripTarget(const StripArgs&) { NM_CHECK(false && "HasInt16Strip said no"); }
bool HasInt16StripTarget(DType) { return false; }
size_t Int16ScratchFloatsTarget(size_t) { return 0; }

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX3_DL

#if HWY_ONCE
namespace npumoe {

HWY_EXPORT(RunInt16StripTarget);
HWY_EXPORT(HasInt16StripTarget);
HWY_EXPORT(Int16ScratchFloatsTarget);

bool HasInt16Strip(DType dtype) { return HWY_DYNAMIC_DISPATCH(HasInt16StripTarget)(dtype); }
size_t Int16ScratchFloats(size_t max_inner) { return HWY_DYNAMIC_DISPATCH(Int16ScratchFloatsTarget)(max_inner); }
void RunInt16Strip(const StripArgs& args) { HWY_DYNAMIC_DISPATCH(RunInt16StripTarget)(args); }

}  // namespace npumoe
#endif  // HWY_ONCE
