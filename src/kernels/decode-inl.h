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

// out[i] = scale * q[i] - offset; q: [n], n a multiple of 16.
HWY_INLINE void ScaleBytes(const int8_t* HWY_RESTRICT q, size_t n, float scale, float offset, float* HWY_RESTRICT out) {
  const DecF32 df;
  const auto v_scale = hn::Set(df, scale);
  const auto v_offset = hn::Set(df, offset);
  for (size_t i = 0; i < n; i += hn::Lanes(df)) {
    const auto value = hn::ConvertTo(df, hn::PromoteTo(DecI32(), hn::LoadU(DecI8(), q + i)));
    hn::StoreU(hn::MulSub(value, v_scale, v_offset), df, out + i);
  }
}

// The same without an offset: keeps the sign of a zero product, as the definition does.
HWY_INLINE void ScaleBytes(const int8_t* HWY_RESTRICT q, size_t n, float scale, float* HWY_RESTRICT out) {
  const DecF32 df;
  const auto v_scale = hn::Set(df, scale);
  for (size_t i = 0; i < n; i += hn::Lanes(df)) {
    const auto value = hn::ConvertTo(df, hn::PromoteTo(DecI32(), hn::LoadU(DecI8(), q + i)));
    hn::StoreU(hn::Mul(value, v_scale), df, out + i);
  }
}

HWY_INLINE void StoreBytes(VBytes16 v, int8_t* to) { hn::StoreU(v, Bytes16(), reinterpret_cast<uint8_t*>(to)); }
HWY_INLINE void StoreBytes32(VBytes v, int8_t* to) { hn::StoreU(v, Bytes(), reinterpret_cast<uint8_t*>(to)); }

HWY_INLINE VBytes16 LowNibbles(VBytes16 v) { return hn::And(v, hn::Set(Bytes16(), 15)); }

// 16 where bit i of `bits` is set, for bits 16 * half + i, i in [0, 16).
HWY_INLINE VBytes16 FifthBits(const uint8_t* qh, size_t half) {
  alignas(16) static constexpr uint8_t kByteOf[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  alignas(16) static constexpr uint8_t kBitOf[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const Bytes16 d;
  uint16_t bits;
  std::memcpy(&bits, qh + 2 * half, sizeof(bits));
  const auto spread =
      hn::TableLookupBytes(hn::BitCast(d, hn::Set(hn::Full128<uint16_t>(), bits)), hn::Load(d, kByteOf));
  return hn::IfThenElseZero(hn::TestBit(spread, hn::Load(d, kBitOf)), hn::Set(d, 16));
}

// ---- Blocks of 32

inline void DecodeBlock(const BlockQ8_0& b, float* out) { ScaleBytes(b.qs, 32, F16ToF32(b.d), out); }

inline void DecodeBlock(const BlockQ4_0& b, float* out) {
  alignas(16) int8_t q[32];
  const auto packed = hn::LoadU(Bytes16(), b.qs);
  const auto eight = hn::Set(Bytes16(), 8);
  StoreBytes(hn::Sub(LowNibbles(packed), eight), q);
  StoreBytes(hn::Sub(hn::ShiftRight<4>(packed), eight), q + 16);
  ScaleBytes(q, 32, F16ToF32(b.d), out);
}

inline void DecodeBlock(const BlockQ4_1& b, float* out) {
  alignas(16) int8_t q[32];
  const auto packed = hn::LoadU(Bytes16(), b.qs);
  StoreBytes(LowNibbles(packed), q);
  StoreBytes(hn::ShiftRight<4>(packed), q + 16);
  ScaleBytes(q, 32, F16ToF32(b.d), -F16ToF32(b.m), out);
}

inline void DecodeBlock(const BlockQ5_0& b, float* out) {
  alignas(16) int8_t q[32];
  const auto packed = hn::LoadU(Bytes16(), b.qs);
  const auto sixteen = hn::Set(Bytes16(), 16);
  StoreBytes(hn::Sub(hn::Or(LowNibbles(packed), FifthBits(b.qh, 0)), sixteen), q);
  StoreBytes(hn::Sub(hn::Or(hn::ShiftRight<4>(packed), FifthBits(b.qh, 1)), sixteen), q + 16);
  ScaleBytes(q, 32, F16ToF32(b.d), out);
}

inline void DecodeBlock(const BlockQ5_1& b, float* out) {
  alignas(16) int8_t q[32];
  const auto packed = hn::LoadU(Bytes16(), b.qs);
  StoreBytes(hn::Or(LowNibbles(packed), FifthBits(b.qh, 0)), q);
  StoreBytes(hn::Or(hn::ShiftRight<4>(packed), FifthBits(b.qh, 1)), q + 16);
  ScaleBytes(q, 32, F16ToF32(b.d), -F16ToF32(b.m), out);
}

// Low/high halves of 16 bytes through a table of 16 signed values.
HWY_INLINE void LookUp32(const uint8_t* qs, const int8_t* table, int8_t* q) {
  const auto packed = hn::LoadU(Bytes16(), qs);
  const auto values = hn::LoadU(Bytes16(), reinterpret_cast<const uint8_t*>(table));
  StoreBytes(hn::TableLookupBytes(values, LowNibbles(packed)), q);
  StoreBytes(hn::TableLookupBytes(values, hn::ShiftRight<4>(packed)), q + 16);
}

inline void DecodeBlock(const BlockIQ4NL& b, float* out) {
  alignas(16) int8_t q[32];
  LookUp32(b.qs, kIq4Values.data(), q);
  ScaleBytes(q, 32, F16ToF32(b.d), out);
}

inline void DecodeBlock(const BlockMXFP4& b, float* out) {
  alignas(16) int8_t q[32];
  LookUp32(b.qs, kMxfp4Values.data(), q);
  ScaleBytes(q, 32, Mxfp4Scale(b.e), out);
}

// ---- Blocks of 256

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
  const float scale = F16ToF32(b.d);
  const float dmin = F16ToF32(b.dmin);
  for (size_t g = 0; g < 16; ++g) {
    ScaleBytes(q + 16 * g, 16, scale * static_cast<float>(b.scales[g] & 15),
               dmin * static_cast<float>(b.scales[g] >> 4), out + 16 * g);
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
  const float scale = F16ToF32(b.d);
  const std::array<int8_t, 16> scales = UnpackQ3Scales(b.scales);
  for (size_t g = 0; g < 16; ++g) ScaleBytes(q + 16 * g, 16, scale * static_cast<float>(scales[g]), out + 16 * g);
}

inline void DecodeBlock(const BlockQ4K& b, float* out) {
  alignas(32) int8_t q[256];
  const Bytes d;
  const size_t step = hn::Lanes(d);
  for (size_t pair = 0; pair < 4; ++pair) {
    for (size_t i = 0; i < 32; i += step) {
      const auto packed = hn::LoadU(d, b.qs + 32 * pair + i);
      StoreBytes32(hn::And(packed, hn::Set(d, 15)), q + 64 * pair + i);
      StoreBytes32(hn::ShiftRight<4>(packed), q + 64 * pair + 32 + i);
    }
  }
  const float scale = F16ToF32(b.d);
  const float dmin = F16ToF32(b.dmin);
  const K4Scales k = UnpackK4Scales(b.scales);
  for (size_t g = 0; g < 8; ++g) {
    ScaleBytes(q + 32 * g, 32, scale * static_cast<float>(k.scales[g]), dmin * static_cast<float>(k.mins[g]),
               out + 32 * g);
  }
}

inline void DecodeBlock(const BlockQ5K& b, float* out) {
  alignas(32) int8_t q[256];
  const Bytes d;
  const size_t step = hn::Lanes(d);
  const auto sixteen = hn::Set(d, 16);
  for (size_t pair = 0; pair < 4; ++pair) {
    const auto low_bit = hn::Set(d, static_cast<uint8_t>(1u << (2 * pair)));
    const auto high_bit = hn::Set(d, static_cast<uint8_t>(2u << (2 * pair)));
    for (size_t i = 0; i < 32; i += step) {
      const auto packed = hn::LoadU(d, b.qs + 32 * pair + i);
      const auto fifth = hn::LoadU(d, b.qh + i);
      StoreBytes32(hn::Or(hn::And(packed, hn::Set(d, 15)), hn::IfThenElseZero(hn::TestBit(fifth, low_bit), sixteen)),
                   q + 64 * pair + i);
      StoreBytes32(hn::Or(hn::ShiftRight<4>(packed), hn::IfThenElseZero(hn::TestBit(fifth, high_bit), sixteen)),
                   q + 64 * pair + 32 + i);
    }
  }
  const float scale = F16ToF32(b.d);
  const float dmin = F16ToF32(b.dmin);
  const K4Scales k = UnpackK4Scales(b.scales);
  for (size_t g = 0; g < 8; ++g) {
    ScaleBytes(q + 32 * g, 32, scale * static_cast<float>(k.scales[g]), dmin * static_cast<float>(k.mins[g]),
               out + 32 * g);
  }
}

inline void DecodeBlock(const BlockQ6K& b, float* out) {
  alignas(32) int8_t q[256];
  const Bytes d;
  const size_t step = hn::Lanes(d);
  const auto fifteen = hn::Set(d, 15);
  const auto high = hn::Set(d, 0x30);
  const auto bias = hn::Set(d, 32);
  for (size_t half = 0; half < 2; ++half) {
    for (size_t i = 0; i < 32; i += step) {
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
  const float scale = F16ToF32(b.d);
  for (size_t g = 0; g < 16; ++g) ScaleBytes(q + 16 * g, 16, scale * static_cast<float>(b.scales[g]), out + 16 * g);
}

inline void DecodeBlock(const BlockIQ4XS& b, float* out) {
  alignas(16) int8_t q[32];
  const float scale = F16ToF32(b.d);
  for (size_t g = 0; g < 8; ++g) {
    LookUp32(b.qs + 16 * g, kIq4Values.data(), q);
    ScaleBytes(q, 32, scale * static_cast<float>(Iq4XsScale(b, g)), out + 32 * g);
  }
}

// ---- Rows

template <typename Block, size_t kElems>
HWY_NOINLINE void DecodeBlocks(const std::byte* row, size_t n, float* out) {
  const auto* blocks = reinterpret_cast<const Block*>(row);  // packed: any address will do
  for (size_t b = 0; b < n / kElems; ++b) DecodeBlock(blocks[b], out + b * kElems);
}

inline void DecodeF16(const std::byte* row, size_t n, float* out) {
  size_t i = 0;
// x86 below AVX2 has no f16 conversion; Highway's stand-in there does not know infinities.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_ARCH_ARM
  const DecF32 df;
  const hn::Rebind<uint16_t, DecF32> du16;
  const hn::Rebind<hwy::float16_t, DecF32> df16;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df)) {
    alignas(64) uint16_t halves[hn::MaxLanes(df)];
    std::memcpy(halves, row + 2 * i, sizeof(halves));
    hn::StoreU(hn::PromoteTo(df, hn::BitCast(df16, hn::Load(du16, halves))), df, out + i);
  }
#endif
  if (i < n) DequantizeRow(DType::kF16, row + 2 * i, std::span<float>(out + i, n - i));
}

inline void DecodeBF16(const std::byte* row, size_t n, float* out) {
  const DecF32 df;
  const hn::Rebind<uint32_t, DecF32> du32;
  const hn::Rebind<uint16_t, DecF32> du16;
  size_t i = 0;
  for (; i + hn::Lanes(df) <= n; i += hn::Lanes(df)) {
    alignas(64) uint16_t halves[hn::MaxLanes(df)];
    std::memcpy(halves, row + 2 * i, sizeof(halves));
    const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::Load(du16, halves)));
    hn::StoreU(hn::BitCast(df, wide), df, out + i);
  }
  if (i < n) DequantizeRow(DType::kBF16, row + 2 * i, std::span<float>(out + i, n - i));
}

inline void DecodeRowSimd(DType dtype, const std::byte* row, size_t n, float* out) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<void>(n == 0 ? nullptr : std::memcpy(out, row, n * sizeof(float)));
    case DType::kF16:
      return DecodeF16(row, n, out);
    case DType::kBF16:
      return DecodeBF16(row, n, out);
    case DType::kQ8_0:
      return DecodeBlocks<BlockQ8_0, 32>(row, n, out);
    case DType::kQ4_0:
      return DecodeBlocks<BlockQ4_0, 32>(row, n, out);
    case DType::kQ4_1:
      return DecodeBlocks<BlockQ4_1, 32>(row, n, out);
    case DType::kQ5_0:
      return DecodeBlocks<BlockQ5_0, 32>(row, n, out);
    case DType::kQ5_1:
      return DecodeBlocks<BlockQ5_1, 32>(row, n, out);
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
      return DecodeBlocks<BlockIQ4NL, 32>(row, n, out);
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
