// SPDX-License-Identifier: Apache-2.0
// Weights for the integer path without AVX-512: kLanes rows side by side. The same codes and scales as
// integer_decode-inl.h. Codes are below 2^kBits with the format's zero, but those of 8 bits may be asked for as signed
// bytes with zero 0.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_NARROW_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_NARROW_DECODE_INL_H_
#undef NPUMOE_KERNELS_NARROW_DECODE_INL_H_
#else
#define NPUMOE_KERNELS_NARROW_DECODE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/integer_format.h"
#include "kernels/narrow_lanes-inl.h"
#include "tensor/blocks.h"

#if HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

// The zero of the codes that DecodeCodes and DecodeSuper hand out.
template <typename Block, bool kSigned>
inline constexpr int kZeroOf = kSigned&& Format<Block>::kBits == 8 ? 0 : Format<Block>::kZero;

template <int kBits>
HWY_INLINE VBytes ShiftPairsRight(VBytes v) {
  return hn::BitCast(Bytes(), hn::ShiftRight<kBits>(hn::BitCast(hn::Repartition<uint16_t, Bytes>(), v)));
}
template <int kBits>
HWY_INLINE VBytes ShiftPairsLeft(VBytes v) {
  return hn::BitCast(Bytes(), hn::ShiftLeft<kBits>(hn::BitCast(hn::Repartition<uint16_t, Bytes>(), v)));
}
HWY_INLINE VBytes Masked(VBytes v, uint8_t mask) { return hn::And(v, hn::Set(Bytes(), mask)); }
HWY_INLINE VBytes LowNibblesOf(VBytes v) { return Masked(v, 15); }
HWY_INLINE VBytes HighNibblesOf(VBytes v) {
#if HWY_ARCH_X86
  return Masked(ShiftPairsRight<4>(v), 15);  // no shift of bytes
#else
  return hn::ShiftRight<4>(v);
#endif
}

// ---- Formats of 32-element blocks

// DecodeCodes hands the codes of one block of every row to take(word, codes), word a constant from 0 to 7 in ascending
// order: lane r holds elements 4 * word to 4 * word + 3 of row r. q points at the block of row 0.

template <bool kSigned, typename Take>
HWY_INLINE void DecodeCodes(const BlockQ8_0* q, size_t stride, const Take& take) {
  ForEach<2>([&](auto half) NPUMOE_NARROW_LAMBDA {
    constexpr size_t kWord = 4 * half;
    const Quad quad = Transpose(q->qs + 4 * kWord, stride);
    ForEach<4>([&](auto j) NPUMOE_NARROW_LAMBDA {
      const VBytes codes = kSigned ? quad.d[j] : hn::Xor(quad.d[j], hn::Set(Bytes(), uint8_t{128}));
      take(Constant<kWord + j>(), codes);
    });
  });
}

// Codes from nibbles in low/high halves.
template <typename Take>
HWY_INLINE void DecodeNibbles(const uint8_t* qs, size_t stride, const Take& take) {
  const Quad quad = Transpose(qs, stride);
  ForEach<4>([&](auto j) NPUMOE_NARROW_LAMBDA { take(j, LowNibblesOf(quad.d[j])); });
  ForEach<4>([&](auto j) NPUMOE_NARROW_LAMBDA { take(Constant<4 + j>(), HighNibblesOf(quad.d[j])); });
}
template <bool, typename Take>
HWY_INLINE void DecodeCodes(const BlockQ4_0* q, size_t stride, const Take& take) {
  DecodeNibbles(q->qs, stride, take);
}
template <bool, typename Take>
HWY_INLINE void DecodeCodes(const BlockQ4_1* q, size_t stride, const Take& take) {
  DecodeNibbles(q->qs, stride, take);
}

// Through a table of 16 signed values, with the zero added.
template <int kZero, typename Take>
HWY_INLINE void DecodeTable(const uint8_t* qs, size_t stride, const int8_t* table, const Take& take) {
  VBytes values = hn::LoadDup128(Bytes(), reinterpret_cast<const uint8_t*>(table));
  values = hn::Add(values, hn::Set(Bytes(), static_cast<uint8_t>(kZero)));
  DecodeNibbles(qs, stride,
                [&](auto word, VBytes codes) NPUMOE_NARROW_LAMBDA { take(word, hn::TableLookupBytes(values, codes)); });
}
template <bool kSigned, typename Take>
HWY_INLINE void DecodeCodes(const BlockIQ4NL* q, size_t stride, const Take& take) {
  DecodeTable<kZeroOf<BlockIQ4NL, kSigned>>(q->qs, stride, kIq4Values.data(), take);
}
template <bool kSigned, typename Take>
HWY_INLINE void DecodeCodes(const BlockMXFP4* q, size_t stride, const Take& take) {
  DecodeTable<kZeroOf<BlockMXFP4, kSigned>>(q->qs, stride, kMxfp4Values.data(), take);
}

// Four copies of byte `kByte` of every lane.
template <size_t kByte>
HWY_INLINE VBytes SpreadByte(VBytes v) {
  constexpr uint8_t b = kByte;
  alignas(16) static constexpr uint8_t kFrom[16] = {b,     b,     b,     b,     b + 4,  b + 4,  b + 4,  b + 4,
                                                    b + 8, b + 8, b + 8, b + 8, b + 12, b + 12, b + 12, b + 12};
  return hn::TableLookupBytes(v, hn::LoadDup128(Bytes(), kFrom));
}

// With 16 added to the codes of the elements whose bit in qh is set.
template <typename Take>
HWY_INLINE void DecodeFiveBits(const uint8_t* qs, const uint8_t* qh, size_t stride, const Take& take) {
  const VBytes bits = hn::BitCast(Bytes(), GatherRows<uint32_t>(qh, stride));
  const VBytes odd = hn::BitCast(Bytes(), hn::Set(U32(), 0x80402010u));
  const VBytes even = hn::BitCast(Bytes(), hn::Set(U32(), 0x08040201u));
  DecodeNibbles(qs, stride, [&](auto word, VBytes codes) NPUMOE_NARROW_LAMBDA {
    const VBytes bit = word % 2 == 0 ? even : odd;
    const VBytes set = hn::VecFromMask(Bytes(), hn::TestBit(SpreadByte<word / 2>(bits), bit));
    take(word, hn::Or(codes, Masked(set, 16)));
  });
}
template <bool, typename Take>
HWY_INLINE void DecodeCodes(const BlockQ5_0* q, size_t stride, const Take& take) {
  DecodeFiveBits(q->qs, q->qh, stride, take);
}
template <bool, typename Take>
HWY_INLINE void DecodeCodes(const BlockQ5_1* q, size_t stride, const Take& take) {
  DecodeFiveBits(q->qs, q->qh, stride, take);
}

struct ScaleAndOffset {
  VF32 scale, offset;
};

// Scales, and for formats that have them offsets, of one block of every row.
template <typename Block>
HWY_INLINE ScaleAndOffset DecodeScales(const Block* q, size_t stride) {
  const I32 d;
  if constexpr (requires { q->e; }) {  // Mxfp4Scale
    const VI32 e = GatherRows<uint8_t>(&q->e, stride), one = hn::Set(d, 1);
    const VI32 normal = hn::ShiftLeft<23>(hn::Sub(e, one)), subnormal = hn::ShiftLeft<21>(hn::Add(e, one));
    return {hn::BitCast(F32(), hn::IfThenElse(hn::Gt(e, one), normal, subnormal)), hn::Zero(F32())};
  } else if constexpr (!Format<Block>::kOffset) {  // d is in the first two bytes of a block
    return {HalvesToFloat(GatherRows<uint16_t>(q, stride)), hn::Zero(F32())};
  } else {  // d and m
    const VI32 both = GatherRows<uint32_t>(q, stride);
    return {HalvesToFloat(LowHalves(both)), HalvesToFloat(LowHalves(hn::ShiftRight<16>(both)))};
  }
}

// ---- Formats of 256-element blocks

// out[i * pitch + lane] = factor * byte i of the lane, i < 4.
template <bool kSigned>
HWY_INLINE void ScaleFourBytes(VBytes v, VF32 factor, float* out, size_t pitch) {
  const I32 d;
  const VI32 word = hn::BitCast(d, v);
  ForEach<4>([&](auto i) NPUMOE_NARROW_LAMBDA {
    const VI32 byte = kSigned ? hn::ShiftRight<24>(hn::ShiftLeft<24 - 8 * i>(word))
                              : hn::And(hn::ShiftRight<8 * i>(word), hn::Set(d, 255));
    hn::Store(hn::Mul(hn::ConvertTo(F32(), byte), factor), F32(), out + i * pitch);
  });
}

// Scales and offsets of Q4_K and Q5_K. The first 16 bytes of a block are d, dmin and the 12 bytes of UnpackK4Scales.
HWY_INLINE void DecodeK4Scales(const void* q, size_t stride, float* scales, float* offsets, size_t pitch) {
  const Quad head = Transpose(q, stride);
  const VI32 both = hn::BitCast(I32(), head.d[0]);
  const VF32 d = HalvesToFloat(LowHalves(both)), dmin = HalvesToFloat(LowHalves(hn::ShiftRight<16>(both)));
  const VF32 minus_dmin = hn::Sub(hn::Zero(F32()), dmin);
  const auto upper = [&](VBytes low, VBytes word)
                         NPUMOE_NARROW_LAMBDA { return hn::Or(low, Masked(ShiftPairsRight<2>(word), 0x30)); };
  ScaleFourBytes<false>(Masked(head.d[1], 63), d, scales, pitch);
  ScaleFourBytes<false>(upper(LowNibblesOf(head.d[3]), head.d[1]), d, scales + 4 * pitch, pitch);
  ScaleFourBytes<false>(Masked(head.d[2], 63), minus_dmin, offsets, pitch);
  ScaleFourBytes<false>(upper(HighNibblesOf(head.d[3]), head.d[2]), minus_dmin, offsets + 4 * pitch, pitch);
}

// DecodeSuperScales: scales and offsets of every group of one block of every row, [8 * groups, pitch].
// DecodeSuper hands the codes to take(part, word, codes) as DecodeCodes does, part being one of 8 runs of 32 elements;
// the words of a part come in ascending order, together with those of at most three others.

HWY_INLINE void DecodeSuperScales(const BlockQ4K* q, size_t stride, float* scales, float* offsets, size_t pitch) {
  DecodeK4Scales(q, stride, scales, offsets, pitch);
}
template <typename Take>
HWY_INLINE void DecodeSuper(const BlockQ4K* q, size_t stride, const Take& take) {
  ForEach<8>([&](auto chunk) NPUMOE_NARROW_LAMBDA {  // 16 bytes: half of two groups
    const Quad quad = Transpose(q->qs + 16 * chunk, stride);
    constexpr size_t kPart = chunk / 2 * 2, kWord = chunk % 2 * 4;
    ForEach<4>([&](auto j) NPUMOE_NARROW_LAMBDA {
      constexpr size_t kW = kWord + j;
      const Constant<kW> word;
      take(Constant<kPart>(), word, LowNibblesOf(quad.d[j]));
      take(Constant<kPart + 1>(), word, HighNibblesOf(quad.d[j]));
    });
  });
}

HWY_INLINE void DecodeSuperScales(const BlockQ5K* q, size_t stride, float* scales, float* offsets, size_t pitch) {
  DecodeK4Scales(q, stride, scales, offsets, pitch);
}
// Bit kBit of every byte to bit 4.
template <size_t kBit>
HWY_INLINE VBytes Fifth(VBytes v) {
  if constexpr (kBit > 4) return Masked(ShiftPairsRight<kBit - 4>(v), 16);
  if constexpr (kBit < 4) return Masked(ShiftPairsLeft<4 - kBit>(v), 16);
  return Masked(v, 16);
}
template <typename Take>
HWY_INLINE void DecodeSuper(const BlockQ5K* q, size_t stride, const Take& take) {
  ForEach<8>([&](auto chunk) NPUMOE_NARROW_LAMBDA {
    const Quad quad = Transpose(q->qs + 16 * chunk, stride);
    // 16 of the 32 elements of every group; bit p of every byte belongs to group p.
    const Quad high = Transpose(q->qh + chunk % 2 * 16, stride);
    constexpr size_t kPart = chunk / 2 * 2, kWord = chunk % 2 * 4;
    ForEach<4>([&](auto j) NPUMOE_NARROW_LAMBDA {
      constexpr size_t kW = kWord + j;
      const Constant<kW> word;
      take(Constant<kPart>(), word, hn::Or(LowNibblesOf(quad.d[j]), Fifth<kPart>(high.d[j])));
      take(Constant<kPart + 1>(), word, hn::Or(HighNibblesOf(quad.d[j]), Fifth<kPart + 1>(high.d[j])));
    });
  });
}

HWY_INLINE void DecodeSuperScales(const BlockQ6K* q, size_t stride, float* scales, float*, size_t pitch) {
  const VF32 d = HalvesToFloat(GatherRows<uint16_t>(&q->d, stride));
  const Quad bytes = Transpose(q->scales, stride);
  for (size_t j = 0; j < 4; ++j) ScaleFourBytes<true>(bytes.d[j], d, scales + 4 * pitch * j, pitch);
}
template <typename Take>
HWY_INLINE void DecodeSuper(const BlockQ6K* q, size_t stride, const Take& take) {
  ForEach<4>([&](auto chunk) NPUMOE_NARROW_LAMBDA {  // half of the block, half of each 32 elements
    constexpr size_t kHalf = chunk / 2, kSide = chunk % 2, kPart = 4 * kHalf;
    const Quad two = Transpose(q->qh + 32 * kHalf + 16 * kSide, stride);
    const Quad low_a = Transpose(q->ql + 64 * kHalf + 16 * kSide, stride);
    const Quad low_b = Transpose(q->ql + 64 * kHalf + 32 + 16 * kSide, stride);
    ForEach<4>([&](auto j) NPUMOE_NARROW_LAMBDA {
      constexpr size_t kW = 4 * kSide + j;
      const Constant<kW> word;
      const auto with = [&](VBytes low, VBytes high) NPUMOE_NARROW_LAMBDA { return hn::Or(low, Masked(high, 0x30)); };
      take(Constant<kPart>(), word, with(LowNibblesOf(low_a.d[j]), ShiftPairsLeft<4>(two.d[j])));
      take(Constant<kPart + 1>(), word, with(LowNibblesOf(low_b.d[j]), ShiftPairsLeft<2>(two.d[j])));
      take(Constant<kPart + 2>(), word, with(HighNibblesOf(low_a.d[j]), two.d[j]));
      take(Constant<kPart + 3>(), word, with(HighNibblesOf(low_b.d[j]), ShiftPairsRight<2>(two.d[j])));
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX2 or Arm
#endif  // per-target include guard
