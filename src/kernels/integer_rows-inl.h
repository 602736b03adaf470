// SPDX-License-Identifier: Apache-2.0
// Activations as integers of one signed byte, or two, for vpdpbusd. See integer_strip.h. AVX-512 only.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_INTEGER_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_INTEGER_ROWS_INL_H_
#undef NPUMOE_KERNELS_INTEGER_ROWS_INL_H_
#else
#define NPUMOE_KERNELS_INTEGER_ROWS_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX3_DL

#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace npumoe {
namespace HWY_NAMESPACE {

// The bits of kMagic + n, for integers |n| < 2^22, are those of kMagic plus n: a sum that starts from them needs no
// conversion to float.
inline constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23

// 32 activations.
template <int kBytes>
struct XBlock;

// x = scale * high.
template <>
struct alignas(64) XBlock<1> {
  static constexpr float kMax = 127.0f;
  int8_t high[32];
  float scale;       // its two lowest bits are 0, so that kMagic * scale is exact
  float magic;       // kMagic * scale
  float sum[2];      // scale * sum of high over each group
  int32_t start[2];  // bits of kMagic, minus zero * sum of high over each group
};

// x = scale * (256 * high + low).
template <>
struct alignas(32) XBlock<2> {
  // The largest value whose high byte (rounded, so that the low one is signed) still fits: 127 * 256 + 127.
  static constexpr float kMax = 32639.0f;
  int8_t high[32];
  int8_t low[32];
  float scale;
  float sum[2];          // scale * sum of (256 * high + low) over each group
  int32_t zero_high[2];  // -zero * sum of high over each group
  int32_t zero_low[2];   // -zero * sum of low
};

// Four activations, for every weight row.
HWY_INLINE __m512i Word(const int8_t* bytes) {
  int32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Below, kMax / max would come near the end of f32's range.
inline constexpr float kTinyGroup = 1e-30f;

// The scale of 32 elements and their integers.
struct Rounded {
  __m512i a, b;  // 16 each, 32 bits
  float scale;
};

HWY_INLINE Rounded RoundGroup(const float* x, float most) {
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  // As integers, magnitudes of floats compare as they should, and infinities and NaNs are above all others.
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i larger = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                                          _mm512_and_si512(_mm512_castps_si512(b), magnitude));
  const int32_t max_bits = _mm512_reduce_max_epi32(larger);
  if (max_bits >= 0x7f800000) return {_mm512_setzero_si512(), _mm512_setzero_si512(), __builtin_nanf("")};
  const float max = std::bit_cast<float>(max_bits);
  if (max < kTinyGroup) return {_mm512_setzero_si512(), _mm512_setzero_si512(), 0.0f};
  const __m512 inverse = _mm512_set1_ps(most / max);
  return {_mm512_cvtps_epi32(_mm512_mul_ps(a, inverse)), _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse)), max / most};
}

// kGroups: groups of weights per 32 elements, 1 or 2.
template <int kGroups>
HWY_INLINE void QuantizeBlock(const float* x, int32_t zero, XBlock<1>* out) {
  const Rounded q = RoundGroup(x, XBlock<1>::kMax);
  const __m256i high = _mm256_set_m128i(_mm512_cvtepi32_epi8(q.b), _mm512_cvtepi32_epi8(q.a));
  _mm256_store_si256(reinterpret_cast<__m256i*>(out->high), high);
  int32_t sum[2];
  if constexpr (kGroups == 1) {
    sum[0] = sum[1] = _mm512_reduce_add_epi32(_mm512_add_epi32(q.a, q.b));
  } else {
    sum[0] = _mm512_reduce_add_epi32(q.a);
    sum[1] = _mm512_reduce_add_epi32(q.b);
  }
  out->scale = std::bit_cast<float>(std::bit_cast<uint32_t>(q.scale) & ~uint32_t{3});
  out->magic = kMagic * out->scale;
  for (int g = 0; g < 2; ++g) {
    out->sum[g] = out->scale * static_cast<float>(sum[g]);
    out->start[g] = std::bit_cast<int32_t>(kMagic) - zero * sum[g];
  }
}

template <int kGroups>
HWY_INLINE void QuantizeBlock(const float* x, int32_t zero, XBlock<2>* out) {
  const Rounded q = RoundGroup(x, XBlock<2>::kMax);
  const __m512i half = _mm512_set1_epi32(128);
  const __m512i high_a = _mm512_srai_epi32(_mm512_add_epi32(q.a, half), 8);
  const __m512i high_b = _mm512_srai_epi32(_mm512_add_epi32(q.b, half), 8);
  // The low byte of q, read as signed, is what is left.
  const __m256i high = _mm256_set_m128i(_mm512_cvtepi32_epi8(high_b), _mm512_cvtepi32_epi8(high_a));
  const __m256i low = _mm256_set_m128i(_mm512_cvtepi32_epi8(q.b), _mm512_cvtepi32_epi8(q.a));
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
  out->scale = q.scale;
  for (int g = 0; g < 2; ++g) {
    out->sum[g] = q.scale * static_cast<float>(256 * high_sum[g] + low_sum[g]);
    out->zero_high[g] = -zero * high_sum[g];
    out->zero_low[g] = -zero * low_sum[g];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_POP_ATTRIBUTES

#endif  // HWY_AVX3_DL
#endif  // per-target include guard
