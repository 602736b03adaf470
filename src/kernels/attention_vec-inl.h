// SPDX-License-Identifier: Apache-2.0
// Per-target: the vector that attention works in, and what its wide and narrow kernels share.

#if defined(NM_ATTENTION_VEC_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NM_ATTENTION_VEC_INL_H
#undef NM_ATTENTION_VEC_INL_H
#else
#define NM_ATTENTION_VEC_INL_H
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/attention_task.h"
#include "kernels/simd_math-inl.h"
#include "tensor/blocks.h"
#include "tensor/float16.h"

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

// kLanes codes of a block, times its scale: exact, since 11 and 7 bits of mantissa make no more than 18.
HWY_INLINE FloatVec ScaledCodes(const int8_t* codes, FloatVec scale) {
  const Floats d;
  const hn::Rebind<int32_t, Floats> di32;
  const hn::Rebind<int8_t, Floats> di8;
  return hn::Mul(hn::ConvertTo(d, hn::PromoteTo(di32, hn::LoadU(di8, codes))), scale);
}

// Scales of `n` blocks as f32. [RoundUp(n, 16)]: converted 16 at a time.
HWY_INLINE void BlockScales(const BlockQ8_0* blocks, size_t n, float* scales) {
  for (size_t begin = 0; begin < n; begin += 16) {
    uint16_t halves[16] = {};
    const size_t count = std::min<size_t>(16, n - begin);
    for (size_t i = 0; i < count; ++i) halves[i] = blocks[begin + i].d;
    HalfToFloat(halves, 16, scales + begin);
  }
}

// UnpackRows of blocks.
HWY_INLINE void UnpackBlocks(const BlockQ8_0* blocks, size_t n, size_t dim, float* to) {
  const Floats d;
  const size_t stride = TileStride(dim), n_blocks = n * (dim / kBlockElems);
  size_t column = 0;
  for (size_t begin = 0; begin < n_blocks; begin += 16) {
    float scales[16];
    const size_t count = std::min<size_t>(16, n_blocks - begin);
    BlockScales(blocks + begin, count, scales);
    for (size_t i = 0; i < count; ++i) {
      const FloatVec scale = hn::Set(d, scales[i]);
      for (size_t k = 0; k < kBlockElems; k += kLanes) {
        hn::Store(ScaledCodes(blocks[begin + i].qs + k, scale), d, to + column + k);
      }
      column += kBlockElems;
      if (column == dim) column = 0, to += stride;
    }
  }
}

// One row to blocks of the cache, see KvView::Store.
HWY_INLINE void StoreBlocks(const float* from, size_t n, BlockQ8_0* blocks) {
  const Floats d;
  const hn::Rebind<int32_t, Floats> di32;
  const hn::Rebind<int8_t, Floats> di8;
  for (BlockQ8_0* block = blocks; block != blocks + n / kBlockElems; ++block, from += kBlockElems) {
    // Magnitudes of floats order like their bits, with infinity and then NaN at the end.
    auto largest = hn::Zero(di32);
    for (size_t k = 0; k < kBlockElems; k += kLanes) {
      largest = hn::Max(largest, hn::BitCast(di32, hn::Abs(hn::LoadU(d, from + k))));
    }
    const float magnitude = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di32, largest)));
    const uint16_t scale = F32ToF16(magnitude / 127.0f);
    const bool finite = (scale & 0x7c00) != 0x7c00;
    const float inverse = finite && scale != 0 ? 1.0f / F16ToF32(scale) : 0.0f;
    block->d = finite ? scale : uint16_t{0x7e00};  // NaN
    const auto most = hn::Set(di32, 127), least = hn::Set(di32, -127);
    for (size_t k = 0; k < kBlockElems; k += kLanes) {
      const auto code = hn::NearestInt(hn::Mul(hn::LoadU(d, from + k), hn::Set(d, inverse)));
      // Beyond 127 where the scale was rounded down: far so only among the subnormal ones.
      const auto clamped = finite ? hn::Clamp(code, least, most) : hn::Zero(di32);
      hn::StoreU(hn::DemoteTo(di8, clamped), di8, block->qs + k);
    }
  }
}

// Copies `n` rows of the cache to f32 rows, TileStride apart.
HWY_INLINE void UnpackRows(DType dtype, const std::byte* from, size_t n, size_t dim, float* to) {
  const size_t stride = TileStride(dim);
  if (dtype == DType::kQ8_0) return UnpackBlocks(reinterpret_cast<const BlockQ8_0*>(from), n, dim, to);
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
