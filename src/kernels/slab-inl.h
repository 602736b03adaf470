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

struct Words {
  __m512i d[kSlabRows];
};

// Lane r of d[j] = the j-th 32-bit word of the 64 bytes at p + r * stride; bytes of pairs not in `some` are neither
// read nor anything but zero. Whole cache lines at a time: rows a power of two apart evict each other's.
HWY_INLINE Words TransposeLines(const std::byte* p, size_t stride, __mmask32 some) {
  __m512i a[16], b[16];
#pragma GCC unroll 16
  for (size_t r = 0; r < 16; ++r) a[r] = _mm512_maskz_loadu_epi16(some, p + r * stride);
#pragma GCC unroll 8
  for (size_t i = 0; i < 16; i += 2) {  // words of two rows
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < 16; i += 4) {  // of four rows: a[i + j] has in its quarter q their word 4 q + j
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  Words out;
#pragma GCC unroll 4
  for (size_t j = 0; j < 4; ++j) {  // quarters of four fours of rows
    const __m512i low = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88), high = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xdd);
    const __m512i low2 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
    const __m512i high2 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xdd);
    out.d[j] = _mm512_shuffle_i32x4(low, low2, 0x88);
    out.d[4 + j] = _mm512_shuffle_i32x4(high, high2, 0x88);
    out.d[8 + j] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    out.d[12 + j] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  }
  return out;
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX3_DL
#endif  // per-target include guard
