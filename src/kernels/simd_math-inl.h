// SPDX-License-Identifier: Apache-2.0
// Per-target helpers shared by the kernels: exponential, partial loads, 16-bit floats.
// Included once per target, after hwy/highway.h, by files that themselves use foreach_target.h.

#if defined(NM_SIMD_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NM_SIMD_MATH_INL_H
#undef NM_SIMD_MATH_INL_H
#else
#define NM_SIMD_MATH_INL_H
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "tensor/float16.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

// The first min(left, lanes) values, the rest zero; reads nothing beyond them.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> LoadPart(D d, const float* from, size_t left) {
  namespace hn = hwy::HWY_NAMESPACE;
  if (HWY_LIKELY(left >= hn::Lanes(d))) return hn::LoadU(d, from);
  HWY_ALIGN float part[hn::MaxLanes(d)] = {};
  std::memcpy(part, from, left * sizeof(float));
  return hn::Load(d, part);
}

// Writes the first min(left, lanes) values and nothing else.
template <class D>
HWY_INLINE void StorePart(hwy::HWY_NAMESPACE::Vec<D> v, D d, float* to, size_t left) {
  namespace hn = hwy::HWY_NAMESPACE;
  if (HWY_LIKELY(left >= hn::Lanes(d))) {
    hn::StoreU(v, d, to);
    return;
  }
  HWY_ALIGN float part[hn::MaxLanes(d)];
  hn::Store(v, d, part);
  std::memcpy(to, part, left * sizeof(float));
}

// exp(x) for x <= 88; below about -87.3, where the result is no longer a normal number, 0. NaN stays NaN.
// Error below 2 units in the last place: x = n ln2 + r with |r| <= ln2 / 2 in two steps (Cody and Waite), then
// 1 + r + r^2 q(r), q fitted to the smallest largest relative error (3.1e-9) on that interval. exp(0) is 1.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> Exp(D d, hwy::HWY_NAMESPACE::Vec<D> x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<int32_t, D> di;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the mantissa.
  const auto magic = hn::Set(d, 12582912.0f);
  const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const auto n = hn::Sub(shifted, magic);
  // ln2 split so that n times the first part is exact for |n| < 2^14, with or without FMA.
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  auto p = hn::Set(d, 0.00138145401f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.00836874521f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.0416683908f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.166665204f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.499999934f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const auto y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.33f)), y);
}

// Targets whose instructions convert 16-bit floats; Highway's emulation elsewhere does not know infinity.
#undef NM_SIMD_HAVE_F16
#if (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2) || HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR
#define NM_SIMD_HAVE_F16 0
#else
#define NM_SIMD_HAVE_F16 1
#endif

HWY_INLINE void HalfToFloat(const uint16_t* HWY_RESTRICT from, size_t n, float* HWY_RESTRICT to) {
  size_t i = 0;
#if NM_SIMD_HAVE_F16
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  const size_t lanes = hn::Lanes(d);
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from + i))), d, to + i);
  }
#endif
  for (; i < n; ++i) to[i] = F16ToF32(from[i]);
}

// Rounds to nearest even.
HWY_INLINE void FloatToHalf(const float* HWY_RESTRICT from, size_t n, uint16_t* HWY_RESTRICT to) {
  size_t i = 0;
#if NM_SIMD_HAVE_F16
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  const size_t lanes = hn::Lanes(d);
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::DemoteTo(d16, hn::LoadU(d, from + i)), d16, reinterpret_cast<hwy::float16_t*>(to + i));
  }
#endif
  for (; i < n; ++i) to[i] = F32ToF16(from[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // NM_SIMD_MATH_INL_H
