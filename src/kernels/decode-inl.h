// SPDX-License-Identifier: Apache-2.0
// Vectorised DequantizeRow: blocks of every weight format to f32, for the SIMD target at hand.
// Products of a scale and a small integer are exact in f32, so fused and separate multiply-add agree bit for bit.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_DECODE_INL_H_
#undef NPUMOE_KERNELS_DECODE_INL_H_
#else
#define NPUMOE_KERNELS_DECODE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "hwy/highway.h"
#include "tensor/blocks.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

// Without vectors the definition itself is the fastest.
inline void DecodeRowSimd(DType dtype, const std::byte* row, size_t n, float* out) {
  DequantizeRow(dtype, row, std::span<float>(out, n));
}

#else

using DecF32 = hn::ScalableTag<float>;
using DecI32 = hn::Rebind<int32_t, DecF32>;
using DecI8 = hn::Rebind<int8_t, DecF32>;
using Bytes16 = hn::Full128<uint8_t>;
using Bytes = hn::CappedTag<uint8_t, 32>;
using VBytes16 = hn::VFromD<Bytes16>;
using VBytes = hn::VFromD<Bytes>;

// ---- Parts

// n f16 values at any address.
HWY_INLINE void DecodeHalves(const std::byte* halves, size_t n, float* out) {
  size_t i = 0;
// x86 below AVX2 has no f16 conversion; Highway's stand-in there does not know infinities.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_ARCH_ARM_A64
  const DecF32 df;
  const hn::Rebind<uint16_t, DecF32> du16;
  const hn::Rebind<hwy::float16_t, DecF32> df16;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df)) {
    const auto bits = hn::LoadU(du16, reinterpret_cast<const uint16_t*>(halves + 2 * i));
    hn::StoreU(hn::PromoteTo(df, hn::BitCast(df16, bits)), df, out + i);
  }
#endif
  if (i < n) DequantizeRow(DType::kF16, halves + 2 * i, std::span<float>(out + i, n - i));
}

// out[i] = scale * q[i] - offset, or scale * q[i]: without an offset the sign of a zero product stays, as in the
// definition. q: [n], n a multiple of 16.
template <bool kOffset>
HWY_INLINE void ScaleBytes(const int8_t* HWY_RESTRICT q, size_t n, const float* scale, const float* offset,
                           float* HWY_RESTRICT out) {
  const DecF32 df;
  const auto v_scale = hn::Set(df, *scale);
  const auto v_offset = hn::Set(df, kOffset ? *offset : 0.0f);
  for (size_t i = 0; i < n; i += hn::Lanes(df)) {
    const auto value = hn::ConvertTo(df, hn::PromoteTo(DecI32(), hn::LoadU(DecI8(), q + i)));
    hn::StoreU(kOffset ? hn::MulSub(value, v_scale, v_offset) : hn::Mul(value, v_scale), df, out + i);
  }
}
HWY_INLINE void ScaleBytes(const int8_t* q, size_t n, const float* scale, float* out) {
  ScaleBytes<false>(q, n, scale, nullptr, out);
}

HWY_INLINE void StoreBytes(VBytes16 v, int8_t* to) { hn::StoreU(v, Bytes16(), reinterpret_cast<uint8_t*>(to)); }
HWY_INLINE void StoreBytes32(VBytes v, int8_t* to) { hn::StoreU(v, Bytes(), reinterpret_cast<uint8_t*>(to)); }

HWY_INLINE VBytes16 LowNibbles(VBytes16 v) { return hn::And(v, hn::Set(Bytes16(), 15)); }

// 16 where bit i of bits 16 * half + i of qh is set, i in [0, 16).
HWY_INLINE VBytes16 FifthBits(const uint8_t* qh, size_t half) {
  alignas(16) static constexpr uint8_t kByteOf[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  alignas(16) static constexpr uint8_t kBitOf[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const Bytes16 d;
  uint16_t bits;
  std::memcpy(&bits, qh + 2 * half, sizeof(bits));
  const auto both = hn::BitCast(d, hn::Set(hn::Full128<uint16_t>(), bits));
  const auto spread = hn::TableLookupBytes(both, hn::Load(d, kByteOf));
  return hn::IfThenElseZero(hn::TestBit(spread, hn::Load(d, kBitOf)), hn::Set(d, 16));
}

// The 4-bit formats: what each code stands for, before scale and offset.
alignas(16) inline constexpr int8_t kLevelsQ4_0[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
alignas(16) inline constexpr int8_t kLevelsPlain[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

// 16 lanes hold a value for every code: scale the levels once, then look every element up.
template <bool kOffset>
HWY_INLINE hn::VFromD<DecF32> ScaledLevels(const int8_t* levels, const float* scale, const float* offset) {
  const DecF32 df;
  const auto values = hn::ConvertTo(df, hn::PromoteTo(DecI32(), hn::LoadU(DecI8(), levels)));
  const auto v_scale = hn::Set(df, *scale);
  return kOffset ? hn::MulSub(values, v_scale, hn::Set(df, *offset)) : hn::Mul(values, v_scale);
}

// low[i], high[i] = the levels of the two nibbles of qs[i], i in [0, 16).
HWY_INLINE void LookUpNibbles(const uint8_t* qs, hn::VFromD<DecF32> low_levels, hn::VFromD<DecF32> high_levels,
                              float* HWY_RESTRICT low, float* HWY_RESTRICT high) {
  const DecF32 df;
  const auto packed = hn::PromoteTo(DecI32(), hn::LoadU(hn::Rebind<uint8_t, DecF32>(), qs));
  const auto low_codes = hn::IndicesFromVec(df, hn::And(packed, hn::Set(DecI32(), 15)));
  const auto high_codes = hn::IndicesFromVec(df, hn::ShiftRight<4>(packed));
  hn::StoreU(hn::TableLookupLanes(low_levels, low_codes), df, low);
  hn::StoreU(hn::TableLookupLanes(high_levels, high_codes), df, high);
}

#endif

// 32 elements in low/high halves.
template <bool kOffset>
HWY_INLINE void DecodeNibbles(const uint8_t* qs, const int8_t* levels, const float* scale, const float* offset,
                              float* out) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const auto scaled = ScaledLevels<kOffset>(levels, scale, offset);
  LookUpNibbles(qs, scaled, scaled, out, out + 16);
#else
  alignas(16) int8_t q[32];
  const auto packed = hn::LoadU(Bytes16(), qs);
  const auto values = hn::LoadU(Bytes16(), reinterpret_cast<const uint8_t*>(levels));
  StoreBytes(hn::TableLookupBytes(values, LowNibbles(packed)), q);
  StoreBytes(hn::TableLookupBytes(values, hn::ShiftRight<4>(packed)), q + 16);
  ScaleBytes<kOffset>(q, 32, scale, offset, out);
#endif
}

// ---- Blocks of 32. `d` and `m` are the block's scale and negated offset, already in f32.

HWY_INLINE void DecodeBlock(const BlockQ8_0& b, const float* d, const float*, float* out) {
  ScaleBytes(b.qs, 32, d, out);
}
HWY_INLINE void DecodeBlock(const BlockQ4_0& b, const float* d, const float*, float* out) {
  DecodeNibbles<false>(b.qs, kLevelsQ4_0, d, nullptr, out);
}
HWY_INLINE void DecodeBlock(const BlockQ4_1& b, const float* d, const float* m, float* out) {
  DecodeNibbles<true>(b.qs, kLevelsPlain, d, m, out);
}
HWY_INLINE void DecodeBlock(const BlockIQ4NL& b, const float* d, const float*, float* out) {
  DecodeNibbles<false>(b.qs, kIq4Values.data(), d, nullptr, out);
}

HWY_INLINE void DecodeBlock(const BlockQ5_0& b, const float* d, const float*, float* out) {
  alignas(16) int8_t q[32];
  const auto packed = hn::LoadU(Bytes16(), b.qs);
  const auto sixteen = hn::Set(Bytes16(), 16);
  StoreBytes(hn::Sub(hn::Or(LowNibbles(packed), FifthBits(b.qh, 0)), sixteen), q);
  StoreBytes(hn::Sub(hn::Or(hn::ShiftRight<4>(packed), FifthBits(b.qh, 1)), sixteen), q + 16);
  ScaleBytes(q, 32, d, out);
}

HWY_INLINE void DecodeBlock(const BlockQ5_1& b, const float* d, const float* m, float* out) {
  alignas(16) int8_t q[32];
  const auto packed = hn::LoadU(Bytes16(), b.qs);
  StoreBytes(hn::Or(LowNibbles(packed), FifthBits(b.qh, 0)), q);
  StoreBytes(hn::Or(hn::ShiftRight<4>(packed), FifthBits(b.qh, 1)), q + 16);
  ScaleBytes<true>(q, 32, d, m, out);
}

// A row of blocks of 32 with an f16 scale, and an f16 offset where kOffset. The scales of 32 blocks are converted
// together, which costs far less than one by one.
template <typename Block, bool kOffset>
HWY_NOINLINE void DecodeBlocks32(const std::byte* row, size_t n, float* out) {
  constexpr size_t kTogether = 32;
  const auto* blocks = reinterpret_cast<const Block*>(row);  // packed: any address will do
  alignas(64) uint16_t halves[kTogether] = {};
  alignas(64) float d[kTogether];
  alignas(64) float m[kTogether] = {};
  for (size_t left = n / 32; left != 0;) {
    const size_t count = std::min(left, kTogether);
    for (size_t b = 0; b < count; ++b) halves[b] = blocks[b].d;
    DecodeHalves(reinterpret_cast<const std::byte*>(halves), kTogether, d);
    if constexpr (kOffset) {
      for (size_t b = 0; b < count; ++b) halves[b] = blocks[b].m ^ 0x8000u;  // negated
      DecodeHalves(reinterpret_cast<const std::byte*>(halves), kTogether, m);
    }
    for (size_t b = 0; b < count; ++b) DecodeBlock(blocks[b], d + b, m + b, out + 32 * b);
    blocks += count;
    out += 32 * count;
    left -= count;
  }
}

// ---- Blocks of 256, and MXFP4 whose scale is no f16

inline void DecodeBlock(const BlockMXFP4& b, float* out) {
  const float scale = Mxfp4Scale(b.e);
  DecodeNibbles<false>(b.qs, kMxfp4Values.data(), &scale, nullptr, out);
}

inline void DecodeBlock(const BlockQ2K& b, float* out) {
  alignas(32) int8_t q[256];
  const Bytes d;
  const size_t step = hn::Lanes(d);
  const auto three = hn::Set(d, 3);
  for (size_t half = 0; half < 2; ++half) {
    for (size_t i = 0; i < 32; i += step) {
      const auto packed = hn::LoadU(d, b.qs + 32 * half + i);
      int8_t* to = q + 128 * half + i;
      StoreBytes32(hn::And(packed, three), to);
      StoreBytes32(hn::And(hn::ShiftRight<2>(packed), three), to + 32);
      StoreBytes32(hn::And(hn::ShiftRight<4>(packed), three), to + 64);
      StoreBytes32(hn::ShiftRight<6>(packed), to + 96);
    }
  }
  const float d_all = F16ToF32(b.d);
  const float dmin = F16ToF32(b.dmin);
  for (size_t g = 0; g < 16; ++g) {
    const float scale = d_all * static_cast<float>(b.scales[g] & 15);
    const float offset = dmin * static_cast<float>(b.scales[g] >> 4);
    ScaleBytes<true>(q + 16 * g, 16, &scale, &offset, out + 16 * g);
  }
}

inline void DecodeBlock(const BlockQ3K& b, float* out) {
  alignas(32) int8_t q[256];
  const Bytes d;
  const size_t step = hn::Lanes(d);
  const auto three = hn::Set(d, 3);
  const auto four = hn::Set(d, 4);
  for (size_t half = 0; half < 2; ++half) {
    for (size_t i = 0; i < 32; i += step) {
      auto packed = hn::LoadU(d, b.qs + 32 * half + i);
      const auto mask = hn::LoadU(d, b.hmask + i);
      for (size_t s = 0; s < 4; ++s) {
        const auto bit = hn::Set(d, static_cast<uint8_t>(1u << (4 * half + s)));
        const auto missing = hn::IfThenZeroElse(hn::TestBit(mask, bit), four);
        StoreBytes32(hn::Sub(hn::And(packed, three), missing), q + 128 * half + 32 * s + i);
        packed = hn::ShiftRight<2>(packed);
      }
    }
  }
  const float d_all = F16ToF32(b.d);
  const std::array<int8_t, 16> scales = UnpackQ3Scales(b.scales);
  for (size_t g = 0; g < 16; ++g) {
    const float scale = d_all * static_cast<float>(scales[g]);
    ScaleBytes(q + 16 * g, 16, &scale, out + 16 * g);
  }
}

// out[i] = d * q[i], i in [0, 8).
template <typename T>
HWY_INLINE void ScaleScales(const T* q, float d, float* out) {
  const hn::CappedTag<float, 8> df;
  const hn::Rebind<int32_t, decltype(df)> di32;
  const hn::Rebind<T, decltype(df)> dt;
  for (size_t i = 0; i < 8; i += hn::Lanes(df)) {
    const auto value = hn::ConvertTo(df, hn::PromoteTo(di32, hn::LoadU(dt, q + i)));
    hn::StoreU(hn::Mul(value, hn::Set(df, d)), df, out + i);
  }
}

// Scale and offset of the 8 groups of Q4_K and Q5_K. UnpackK4Scales, four bytes at a time.
template <typename Block>
HWY_INLINE void K4ScalesAndOffsets(const Block& b, float* scales, float* offsets) {  // [8] each
  uint32_t packed[3];
  std::memcpy(packed, b.scales, sizeof(packed));
  const uint64_t low = packed[0] & 0x3f3f3f3fu;
  const uint64_t high = (packed[2] & 0x0f0f0f0fu) | (packed[0] >> 2 & 0x30303030u);
  const uint64_t min_low = packed[1] & 0x3f3f3f3fu;
  const uint64_t min_high = (packed[2] >> 4 & 0x0f0f0f0fu) | (packed[1] >> 2 & 0x30303030u);
  alignas(8) uint8_t q[16];
  const uint64_t bytes[2] = {low | high << 32, min_low | min_high << 32};
  std::memcpy(q, &bytes[0], 8);
  std::memcpy(q + 8, &bytes[1], 8);
  ScaleScales(q, F16ToF32(b.d), scales);
  ScaleScales(q + 8, F16ToF32(b.dmin), offsets);
}

inline void DecodeBlock(const BlockQ4K& b, float* out) {
  alignas(64) float scales[8], offsets[8];
  K4ScalesAndOffsets(b, scales, offsets);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  for (size_t pair = 0; pair < 4; ++pair) {
    const auto low = ScaledLevels<true>(kLevelsPlain, scales + 2 * pair, offsets + 2 * pair);
    const auto high = ScaledLevels<true>(kLevelsPlain, scales + 2 * pair + 1, offsets + 2 * pair + 1);
    float* to = out + 64 * pair;
    LookUpNibbles(b.qs + 32 * pair, low, high, to, to + 32);
    LookUpNibbles(b.qs + 32 * pair + 16, low, high, to + 16, to + 48);
  }
#else
  alignas(32) int8_t q[256];
  const Bytes d;
  for (size_t pair = 0; pair < 4; ++pair) {
    for (size_t i = 0; i < 32; i += hn::Lanes(d)) {
      const auto packed = hn::LoadU(d, b.qs + 32 * pair + i);
      StoreBytes32(hn::And(packed, hn::Set(d, 15)), q + 64 * pair + i);
      StoreBytes32(hn::ShiftRight<4>(packed), q + 64 * pair + 32 + i);
    }
  }
  for (size_t g = 0; g < 8; ++g) ScaleBytes<true>(q + 32 * g, 32, scales + g, offsets + g, out + 32 * g);
#endif
}

inline void DecodeBlock(const BlockQ5K& b, float* out) {
  alignas(64) float scales[8], offsets[8];
  K4ScalesAndOffsets(b, scales, offsets);
  alignas(32) int8_t q[256];
  const Bytes d;
  const auto sixteen = hn::Set(d, 16);
  for (size_t pair = 0; pair < 4; ++pair) {
    const auto low_bit = hn::Set(d, static_cast<uint8_t>(1u << (2 * pair)));
    const auto high_bit = hn::Set(d, static_cast<uint8_t>(2u << (2 * pair)));
    for (size_t i = 0; i < 32; i += hn::Lanes(d)) {
      const auto packed = hn::LoadU(d, b.qs + 32 * pair + i);
      const auto fifth = hn::LoadU(d, b.qh + i);
      const auto low_fifth = hn::IfThenElseZero(hn::TestBit(fifth, low_bit), sixteen);
      const auto high_fifth = hn::IfThenElseZero(hn::TestBit(fifth, high_bit), sixteen);
      StoreBytes32(hn::Or(hn::And(packed, hn::Set(d, 15)), low_fifth), q + 64 * pair + i);
      StoreBytes32(hn::Or(hn::ShiftRight<4>(packed), high_fifth), q + 64 * pair + 32 + i);
    }
  }
  for (size_t g = 0; g < 8; ++g) ScaleBytes<true>(q + 32 * g, 32, scales + g, offsets + g, out + 32 * g);
}

inline void DecodeBlock(const BlockQ6K& b, float* out) {
  alignas(32) int8_t q[256];
  const Bytes d;
  const auto fifteen = hn::Set(d, 15);
  const auto high = hn::Set(d, 0x30);
  const auto bias = hn::Set(d, 32);
  for (size_t half = 0; half < 2; ++half) {
    for (size_t i = 0; i < 32; i += hn::Lanes(d)) {
      const auto low_a = hn::LoadU(d, b.ql + 64 * half + i);
      const auto low_b = hn::LoadU(d, b.ql + 64 * half + 32 + i);
      const auto two = hn::LoadU(d, b.qh + 32 * half + i);
      int8_t* to = q + 128 * half + i;
      const auto store = [&](VBytes low, VBytes top, size_t part)
                             HWY_ATTR { StoreBytes32(hn::Sub(hn::Or(low, hn::And(top, high)), bias), to + 32 * part); };
      store(hn::And(low_a, fifteen), hn::ShiftLeft<4>(two), 0);
      store(hn::And(low_b, fifteen), hn::ShiftLeft<2>(two), 1);
      store(hn::ShiftRight<4>(low_a), two, 2);
      store(hn::ShiftRight<4>(low_b), hn::ShiftRight<2>(two), 3);
    }
  }
  alignas(64) float scales[16];
  ScaleScales(b.scales, F16ToF32(b.d), scales);
  ScaleScales(b.scales + 8, F16ToF32(b.d), scales + 8);
  for (size_t g = 0; g < 16; ++g) ScaleBytes(q + 16 * g, 16, scales + g, out + 16 * g);
}

inline void DecodeBlock(const BlockIQ4XS& b, float* out) {
  const float d_all = F16ToF32(b.d);
  for (size_t g = 0; g < 8; ++g) {
    const float scale = d_all * static_cast<float>(Iq4XsScale(b, g));
    DecodeNibbles<false>(b.qs + 16 * g, kIq4Values.data(), &scale, nullptr, out + 32 * g);
  }
}

template <typename Block, size_t kElems>
HWY_NOINLINE void DecodeBlocks(const std::byte* row, size_t n, float* out) {
  const auto* blocks = reinterpret_cast<const Block*>(row);  // packed: any address will do
  for (size_t b = 0; b < n / kElems; ++b) DecodeBlock(blocks[b], out + b * kElems);
}

// ---- Rows

inline void DecodeBF16(const std::byte* row, size_t n, float* out) {
  const DecF32 df;
  const hn::Rebind<uint32_t, DecF32> du32;
  const hn::Rebind<uint16_t, DecF32> du16;
  size_t i = 0;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df)) {
    const auto halves = hn::LoadU(du16, reinterpret_cast<const uint16_t*>(row + 2 * i));
    hn::StoreU(hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du32, halves))), df, out + i);
  }
  if (i < n) DequantizeRow(DType::kBF16, row + 2 * i, std::span<float>(out + i, n - i));
}

inline void DecodeRowSimd(DType dtype, const std::byte* row, size_t n, float* out) {
  switch (dtype) {
    case DType::kF32:
      if (n != 0) std::memcpy(out, row, n * sizeof(float));
      return;
    case DType::kF16:
      return DecodeHalves(row, n, out);
    case DType::kBF16:
      return DecodeBF16(row, n, out);
    case DType::kQ8_0:
      return DecodeBlocks32<BlockQ8_0, false>(row, n, out);
    case DType::kQ4_0:
      return DecodeBlocks32<BlockQ4_0, false>(row, n, out);
    case DType::kQ4_1:
      return DecodeBlocks32<BlockQ4_1, true>(row, n, out);
    case DType::kQ5_0:
      return DecodeBlocks32<BlockQ5_0, false>(row, n, out);
    case DType::kQ5_1:
      return DecodeBlocks32<BlockQ5_1, true>(row, n, out);
    case DType::kQ2_K:
      return DecodeBlocks<BlockQ2K, 256>(row, n, out);
    case DType::kQ3_K:
      return DecodeBlocks<BlockQ3K, 256>(row, n, out);
    case DType::kQ4_K:
      return DecodeBlocks<BlockQ4K, 256>(row, n, out);
    case DType::kQ5_K:
      return DecodeBlocks<BlockQ5K, 256>(row, n, out);
    case DType::kQ6_K:
      return DecodeBlocks<BlockQ6K, 256>(row, n, out);
    case DType::kIQ4_NL:
      return DecodeBlocks32<BlockIQ4NL, false>(row, n, out);
    case DType::kIQ4_XS:
      return DecodeBlocks<BlockIQ4XS, 256>(row, n, out);
    case DType::kMXFP4:
      return DecodeBlocks<BlockMXFP4, 32>(row, n, out);
  }
}

#endif  // HWY_SCALAR || HWY_EMU128

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
