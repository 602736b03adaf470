// SPDX-License-Identifier: Apache-2.0
// 16 weight rows side by side, one per lane: reading them from where they lie one after the other. AVX-512 only.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_SLAB_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_SLAB_INL_H_
#undef NPUMOE_KERNELS_SLAB_INL_H_
#else
#define NPUMOE_KERNELS_SLAB_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "kernels/weight_rows.h"

#if HWY_TARGET == HWY_AVX3_DL

#include <immintrin.h>

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

struct Quad {
  __m512i d[4];
};

HWY_INLINE __m512i LoadEveryFourth(const std::byte* p, size_t stride) {
  const auto load = [](const std::byte* q) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(q)); };
  __m512i v = _mm512_castsi128_si512(load(p));
  v = _mm512_inserti32x4(v, load(p + 4 * stride), 1);
  v = _mm512_inserti32x4(v, load(p + 8 * stride), 2);
  return _mm512_inserti32x4(v, load(p + 12 * stride), 3);
}

// Lane r of d[j] = the j-th 32-bit word of the 16 bytes at p + r * stride.
HWY_INLINE Quad Transpose(const std::byte* p, size_t stride) {
  const __m512i a = LoadEveryFourth(p, stride), b = LoadEveryFourth(p + stride, stride);
  const __m512i c = LoadEveryFourth(p + 2 * stride, stride), d = LoadEveryFourth(p + 3 * stride, stride);
  const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
  const __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
  return {{_mm512_unpacklo_epi64(ab_low, cd_low), _mm512_unpackhi_epi64(ab_low, cd_low),
           _mm512_unpacklo_epi64(ab_high, cd_high), _mm512_unpackhi_epi64(ab_high, cd_high)}};
}
HWY_INLINE Quad Transpose(const void* p, size_t stride) { return Transpose(static_cast<const std::byte*>(p), stride); }

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX3_DL
#endif  // per-target include guard
