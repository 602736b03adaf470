// SPDX-License-Identifier: Apache-2.0
// Per-target: the vector that attention works in, and what its wide and narrow kernels share.

#if defined(NM_ATTENTION_VEC_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NM_ATTENTION_VEC_INL_H
#undef NM_ATTENTION_VEC_INL_H
#else
#define NM_ATTENTION_VEC_INL_H
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/attention_task.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<Floats>;
inline constexpr size_t kLanes = hn::MaxLanes(Floats());
inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// A register tile is kBroadcasts x kVecs accumulators, plus kVecs loads and one broadcast: 28 of 32 registers, or 16
// of 16. Which one it is does not show in the result.
#if HWY_ARCH_X86 && HWY_TARGET >= HWY_AVX2
inline constexpr size_t kBroadcasts = 4;
#else
inline constexpr size_t kBroadcasts = 8;
#endif
inline constexpr size_t kVecs = 3;
static_assert(kPad % kBroadcasts == 0 && kStripRows % (kVecs * kLanes) == 0);

// The maximum to subtract: a row that has seen nothing has -inf, and -inf - -inf would be NaN.
HWY_INLINE FloatVec Pivot(FloatVec max) {
  const Floats d;
  return hn::IfThenZeroElse(hn::Eq(max, hn::Set(d, kMinusInf)), max);
}

// Copies `n` rows of the cache to f32 rows, TileStride apart.
HWY_INLINE void UnpackRows(DType dtype, const std::byte* from, size_t n, size_t dim, float* to) {
  const size_t stride = TileStride(dim);
  for (size_t row = 0; row < n; ++row, to += stride) {
    if (dtype == DType::kF16) {
      HalfToFloat(reinterpret_cast<const uint16_t*>(from) + row * dim, dim, to);
    } else {
      std::memcpy(to, reinterpret_cast<const float*>(from) + row * dim, dim * sizeof(float));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // NM_ATTENTION_VEC_INL_H
