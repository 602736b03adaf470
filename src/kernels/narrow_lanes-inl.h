// SPDX-License-Identifier: Apache-2.0
// A few weight rows side by side, one per 32-bit lane of a vector of 32 bytes (AVX2) or 16 (Arm): reading them from
// where they lie one after the other. For the integer path without AVX-512, see integer_narrow-inl.h.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_NARROW_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_NARROW_LANES_INL_H_
#undef NPUMOE_KERNELS_NARROW_LANES_INL_H_
#else
#define NPUMOE_KERNELS_NARROW_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64

#if HWY_ARCH_X86
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

// Stands in every lambda of the narrow path: what a step of ForEach keeps is to be in registers.
#undef NPUMOE_NARROW_LAMBDA
#define NPUMOE_NARROW_LAMBDA HWY_ATTR __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Bytes = hn::CappedTag<uint8_t, 32>;
using U32 = hn::Repartition<uint32_t, Bytes>;
using I32 = hn::Repartition<int32_t, Bytes>;
using F32 = hn::Repartition<float, Bytes>;
using VBytes = hn::Vec<Bytes>;
using VI32 = hn::Vec<I32>;
using VF32 = hn::Vec<F32>;
inline constexpr size_t kLanes = hn::MaxLanes(F32());

template <size_t kI>
using Constant = std::integral_constant<size_t, kI>;

// step(constant 0), step(constant 1), ... step(constant kN - 1).
template <size_t kN, typename Step>
HWY_INLINE void ForEach(const Step& step) {
  [&]<size_t... kI>(std::index_sequence<kI...>) NPUMOE_NARROW_LAMBDA { (step(Constant<kI>()), ...); }
  (std::make_index_sequence<kN>());
}

struct Quad {
  VBytes d[4];
};

// 16 bytes at p; with 8 lanes, 16 bytes at p + 4 * stride behind them.
HWY_INLINE VBytes LoadEveryFourth(const std::byte* p, [[maybe_unused]] size_t stride) {
  const hn::Full128<uint8_t> half;
  const auto low = hn::LoadU(half, reinterpret_cast<const uint8_t*>(p));
#if HWY_ARCH_X86
  return hn::Combine(Bytes(), hn::LoadU(half, reinterpret_cast<const uint8_t*>(p + 4 * stride)), low);
#else
  return low;
#endif
}

// Lane r of d[j] = the j-th 32-bit word of the 16 bytes at p + r * stride.
HWY_INLINE Quad Transpose(const void* from, size_t stride) {
  const U32 d32;
  const hn::Repartition<uint64_t, Bytes> d64;
  const auto* p = static_cast<const std::byte*>(from);
  const auto a = hn::BitCast(d32, LoadEveryFourth(p, stride));
  const auto b = hn::BitCast(d32, LoadEveryFourth(p + stride, stride));
  const auto c = hn::BitCast(d32, LoadEveryFourth(p + 2 * stride, stride));
  const auto d = hn::BitCast(d32, LoadEveryFourth(p + 3 * stride, stride));
  const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d32, a, b));
  const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d32, a, b));
  const auto cd_low = hn::BitCast(d64, hn::InterleaveLower(d32, c, d));
  const auto cd_high = hn::BitCast(d64, hn::InterleaveUpper(d32, c, d));
  const Bytes bytes;
  return {{hn::BitCast(bytes, hn::InterleaveLower(d64, ab_low, cd_low)),
           hn::BitCast(bytes, hn::InterleaveUpper(d64, ab_low, cd_low)),
           hn::BitCast(bytes, hn::InterleaveLower(d64, ab_high, cd_high)),
           hn::BitCast(bytes, hn::InterleaveUpper(d64, ab_high, cd_high))}};
}

template <typename T>
HWY_INLINE T LoadAs(const void* p) {
  T out;
  std::memcpy(&out, p, sizeof(out));
  return out;
}

// Lane r = the T at p + r * stride, widened.
template <typename T>
HWY_INLINE VI32 GatherRows(const void* from, size_t stride) {
  const auto* p = static_cast<const std::byte*>(from);
  const auto at = [&](size_t r) NPUMOE_NARROW_LAMBDA { return static_cast<int32_t>(LoadAs<T>(p + r * stride)); };
#if HWY_ARCH_X86
  return VI32{_mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))};
#else
  return VI32{int32x4_t{at(0), at(1), at(2), at(3)}};
#endif
}

// The f16 in the lower half of every lane.
HWY_INLINE VF32 HalvesToFloat(VI32 v) {
#if HWY_ARCH_X86
  const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(v.raw), _mm256_extracti128_si256(v.raw, 1));
  return VF32{_mm256_cvtph_ps(halves)};
#else
  return VF32{vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_s32(v.raw))))};
#endif
}

HWY_INLINE VI32 LowHalves(VI32 v) { return hn::And(v, hn::Set(I32(), 0xffff)); }

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX2 or Arm
#endif  // per-target include guard
