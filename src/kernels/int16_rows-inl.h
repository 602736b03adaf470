// SPDX-License-Identifier: Apache-2.0
// Activations as 16-bit integers, split in two signed bytes for vpdpbusd. See int16_strip.h. AVX-512 only.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_INT16_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_INT16_ROWS_INL_H_
#undef NPUMOE_KERNELS_INT16_ROWS_INL_H_
#else
#define NPUMOE_KERNELS_INT16_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX3_DL

#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace npumoe {
namespace HWY_NAMESPACE {

// 32 activations: x = scale * (256 * high + low).
struct alignas(32) XBlock {
  int8_t high[32];
  int8_t low[32];
  float scale;
  float sum[2];          // scale * sum of (256 * high + low) over each group
  int32_t zero_high[2];  // -zero * sum of high over each group
  int32_t zero_low[2];   // -zero * sum of low
};

// The largest value whose high byte (rounded, so that the low one is signed) still fits: 127 * 256 + 127.
inline constexpr float kInt16Max = 32639.0f;
// Below, 32639 / max would come near the end of f32's range.
inline constexpr float kTinyGroup = 1e-30f;

// kGroups: groups of weights per 32 elements, 1 or 2.
template <int kGroups>
HWY_INLINE void QuantizeBlock(const float* x, int32_t zero, XBlock* out) {
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  // As integers, magnitudes of floats compare as they should, and infinities and NaNs are above all others.
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i larger = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                                          _mm512_and_si512(_mm512_castps_si512(b), magnitude));
  const int32_t max_bits = _mm512_reduce_max_epi32(larger);
  float scale = 0.0f, inverse = 0.0f;
  __m512i qa = _mm512_setzero_si512(), qb = qa;
  if (max_bits >= 0x7f800000) {
    scale = __builtin_nanf("");
  } else {
    const float max = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(max_bits)));
    if (max >= kTinyGroup) {
      scale = max / kInt16Max;
      inverse = kInt16Max / max;
      qa = _mm512_cvtps_epi32(_mm512_mul_ps(a, _mm512_set1_ps(inverse)));
      qb = _mm512_cvtps_epi32(_mm512_mul_ps(b, _mm512_set1_ps(inverse)));
    }
  }
  const __m512i half = _mm512_set1_epi32(128);
  const __m512i high_a = _mm512_srai_epi32(_mm512_add_epi32(qa, half), 8);
  const __m512i high_b = _mm512_srai_epi32(_mm512_add_epi32(qb, half), 8);
  // The low byte of q, read as signed, is what is left.
  const __m256i high = _mm256_set_m128i(_mm512_cvtepi32_epi8(high_b), _mm512_cvtepi32_epi8(high_a));
  const __m256i low = _mm256_set_m128i(_mm512_cvtepi32_epi8(qb), _mm512_cvtepi32_epi8(qa));
  const __m512i bytes = _mm512_inserti64x4(_mm512_castsi256_si512(high), low, 1);
  _mm512_storeu_si512(out->high, bytes);

  // Sums of the four 16-byte parts: high of both groups, low of both groups.
  __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes);
  sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_BADC));
  sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_CDAB));
  alignas(64) int32_t part[16];
  _mm512_store_si512(part, sums);
  int32_t high_sum[2] = {part[0], part[4]}, low_sum[2] = {part[8], part[12]};
  if constexpr (kGroups == 1) {
    high_sum[0] += high_sum[1];
    low_sum[0] += low_sum[1];
  }
  out->scale = scale;
  for (int g = 0; g < 2; ++g) {
    out->sum[g] = scale * static_cast<float>(256 * high_sum[g] + low_sum[g]);
    out->zero_high[g] = -zero * high_sum[g];
    out->zero_low[g] = -zero * low_sum[g];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_POP_ATTRIBUTES

#endif  // HWY_AVX3_DL
#endif  // per-target include guard
