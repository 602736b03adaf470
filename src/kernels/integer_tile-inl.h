// SPDX-License-Identifier: Apache-2.0
// The register tile of the integer path: up to 6 activations times 32 weight rows. See integer_strip.h. AVX-512 only.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_INTEGER_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_INTEGER_TILE_INL_H_
#undef NPUMOE_KERNELS_INTEGER_TILE_INL_H_
#else
#define NPUMOE_KERNELS_INTEGER_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/integer_decode-inl.h"
#include "kernels/integer_rows-inl.h"
#include "kernels/integer_strip.h"
#include "kernels/slab-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace npumoe {
namespace HWY_NAMESPACE {

// Two slabs are multiplied at a time: an activation byte is broadcast once for 32 weight rows.
inline constexpr size_t kSlabs = 2;
static_assert(kSlabs * kSlabRows == kIntegerStripStep);
inline constexpr size_t kTileRows = kIntegerPanelStep;

// Addresses are a base and a distance: one pointer per row would not fit the registers.
template <int kBytes>
struct Tile {
  const XBlock<kBytes>* x;  // first row
  size_t pitch;             // blocks from one row to the next
  // Of the first slab; the second is kSlabFloats further on. What a slab that does not exist holds reaches no output.
  const uint8_t* codes;
  const float* scales;
  const float* offsets;
  size_t n_blocks;
  float* y;  // first row
  size_t y_stride;
  __mmask16 columns[kSlabs];  // which of the 16 outputs exist
  bool add;                   // to what y holds: all but the first piece of K
  Ahead* ahead;               // one step for each of n_blocks
};
inline constexpr size_t kSlabBytes = kSlabFloats * sizeof(float);

// One group of weights: kWords words of four codes each, for every row and slab, from word `first` of the block on.
// out = scale of x * sum of q * (u - z).
template <int kRows, int kWords>
HWY_INLINE void MultiplyGroup(const Tile<1>& tile, size_t block, int first, int group, __m512 (&out)[kRows][kSlabs]) {
  const uint8_t* codes0 = tile.codes + 512 * block + 64 * first;
  const uint8_t* codes1 = codes0 + kSlabBytes;
  const auto* x = tile.x + block;
  __m512i sums[kRows][kSlabs];
  for (size_t r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_set1_epi32(x[r * tile.pitch].start[group]);
  for (int t = 0; t < kWords; ++t) {
    const __m512i w0 = _mm512_load_si512(codes0 + 64 * t), w1 = _mm512_load_si512(codes1 + 64 * t);
    for (size_t r = 0; r < kRows; ++r) {
      const __m512i word = Word(x[r * tile.pitch].high + 4 * (first + t));
      sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], w0, word);
      sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], w1, word);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    const __m512 scale = _mm512_set1_ps(x[r * tile.pitch].scale), magic = _mm512_set1_ps(x[r * tile.pitch].magic);
    for (size_t s = 0; s < kSlabs; ++s) out[r][s] = _mm512_fmsub_ps(_mm512_castsi512_ps(sums[r][s]), scale, magic);
  }
}

// The integer sums of 16-bit activations.
template <int kRows, int kWords>
HWY_INLINE void SumGroup(const Tile<2>& tile, size_t block, int first, int group, __m512i (&sums)[kRows][kSlabs]) {
  const uint8_t* codes0 = tile.codes + 512 * block + 64 * first;
  const uint8_t* codes1 = codes0 + kSlabBytes;
  const auto* x = tile.x + block;
  if constexpr (kRows <= 2) {  // two chains per sum, or there would be too few to fill the multipliers
    __m512i low[kRows][kSlabs];
    for (size_t r = 0; r < kRows; ++r) {
      const auto& of = x[r * tile.pitch];
      sums[r][0] = sums[r][1] = _mm512_set1_epi32(of.zero_high[group]);
      low[r][0] = low[r][1] = _mm512_set1_epi32(of.zero_low[group]);
    }
    for (int t = 0; t < kWords; ++t) {
      const __m512i w0 = _mm512_load_si512(codes0 + 64 * t), w1 = _mm512_load_si512(codes1 + 64 * t);
      for (size_t r = 0; r < kRows; ++r) {
        const auto& of = x[r * tile.pitch];
        const __m512i high_word = Word(of.high + 4 * (first + t)), low_word = Word(of.low + 4 * (first + t));
        sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], w0, high_word);
        sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], w1, high_word);
        low[r][0] = _mm512_dpbusd_epi32(low[r][0], w0, low_word);
        low[r][1] = _mm512_dpbusd_epi32(low[r][1], w1, low_word);
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t s = 0; s < kSlabs; ++s) {
        sums[r][s] = _mm512_add_epi32(_mm512_slli_epi32(sums[r][s], 8), low[r][s]);
      }
    }
    return;
  }
  for (size_t r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_set1_epi32(x[r * tile.pitch].zero_high[group]);
  for (int t = 0; t < kWords; ++t) {
    const __m512i w0 = _mm512_load_si512(codes0 + 64 * t), w1 = _mm512_load_si512(codes1 + 64 * t);
    for (size_t r = 0; r < kRows; ++r) {
      const __m512i word = Word(x[r * tile.pitch].high + 4 * (first + t));
      sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], w0, word);
      sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], w1, word);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    const __m512i zero_low = _mm512_set1_epi32(x[r * tile.pitch].zero_low[group]);
    for (size_t s = 0; s < kSlabs; ++s) {
      sums[r][s] = _mm512_add_epi32(_mm512_slli_epi32(sums[r][s], 8), zero_low);
    }
  }
  for (int t = 0; t < kWords; ++t) {
    const __m512i w0 = _mm512_load_si512(codes0 + 64 * t), w1 = _mm512_load_si512(codes1 + 64 * t);
    for (size_t r = 0; r < kRows; ++r) {
      const __m512i word = Word(x[r * tile.pitch].low + 4 * (first + t));
      sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], w0, word);
      sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], w1, word);
    }
  }
}

template <int kRows, int kWords>
HWY_INLINE void MultiplyGroup(const Tile<2>& tile, size_t block, int first, int group, __m512 (&out)[kRows][kSlabs]) {
  const auto* x = tile.x + block;
  __m512i sums[kRows][kSlabs];
  SumGroup<kRows, kWords>(tile, block, first, group, sums);
  for (size_t r = 0; r < kRows; ++r) {
    const __m512 scale = _mm512_set1_ps(x[r * tile.pitch].scale);
    for (size_t s = 0; s < kSlabs; ++s) out[r][s] = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][s]), scale);
  }
}

template <int kRows, int kGroups, bool kOffset, int kBytes>
HWY_NOINLINE void MultiplyTile(const Tile<kBytes>& tile) {
  __m512 acc[kRows][kSlabs];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t s = 0; s < kSlabs; ++s) {
      acc[r][s] = tile.add ? _mm512_maskz_loadu_ps(tile.columns[s], tile.y + r * tile.y_stride + kSlabRows * s)
                           : _mm512_setzero_ps();
    }
  }
  Ahead ahead = *tile.ahead;
  for (size_t block = 0; block < tile.n_blocks; ++block) {
    ahead.Step();
    for (int group = 0; group < kGroups; ++group) {
      __m512 value[kRows][kSlabs];
      MultiplyGroup<kRows, 8 / kGroups>(tile, block, group * (8 / kGroups), group, value);
      for (size_t s = 0; s < kSlabs; ++s) {
        const size_t at = kSlabRows * (kGroups * block + static_cast<size_t>(group));
        const __m512 scale = _mm512_load_ps(tile.scales + kSlabFloats * s + at);
        for (size_t r = 0; r < kRows; ++r) {
          acc[r][s] = _mm512_fmadd_ps(value[r][s], scale, acc[r][s]);
          if constexpr (kOffset) {
            const __m512 offset = _mm512_load_ps(tile.offsets + kSlabFloats * s + at);
            acc[r][s] = _mm512_fmadd_ps(_mm512_set1_ps(tile.x[r * tile.pitch + block].sum[group]), offset, acc[r][s]);
          }
        }
      }
    }
  }
  *tile.ahead = ahead;
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t s = 0; s < kSlabs; ++s) {
      _mm512_mask_storeu_ps(tile.y + r * tile.y_stride + kSlabRows * s, tile.columns[s], acc[r][s]);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_POP_ATTRIBUTES

#endif  // HWY_AVX3_DL
#endif  // per-target include guard
