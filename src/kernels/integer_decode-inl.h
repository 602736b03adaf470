// SPDX-License-Identifier: Apache-2.0
// Weights for the integer path: 16 rows side by side, one per lane. See integer_strip.h. AVX-512 only.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_INTEGER_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_INTEGER_DECODE_INL_H_
#undef NPUMOE_KERNELS_INTEGER_DECODE_INL_H_
#else
#define NPUMOE_KERNELS_INTEGER_DECODE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/integer_format.h"
#include "kernels/slab-inl.h"
#include "tensor/blocks.h"
#include "tensor/float16.h"

#if HWY_TARGET == HWY_AVX3_DL

#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace npumoe {
namespace HWY_NAMESPACE {

// Codes, scales and offsets of 16 weight rows over some 32-element blocks. Lane r is row r.
struct Slab {
  uint8_t* codes;  // [blocks, 8, 16, 4]: four consecutive elements of every row
  float* scales;   // [blocks * groups, 16]
  float* offsets;  // [blocks * groups, 16], for formats that have them
};

HWY_INLINE __m512i LowNibblesOf(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
HWY_INLINE __m512i HighNibblesOf(__m512i v) { return LowNibblesOf(_mm512_srli_epi16(v, 4)); }

// Mxfp4Scale of 16 bytes.
HWY_INLINE __m512 ExponentsToScales(__m128i exponents) {
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i e = _mm512_cvtepu8_epi32(exponents);
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
  const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, _mm512_cmple_epi32_mask(e, one), subnormal));
}

// ---- Formats of 32-element blocks

// DecodeCodes hands the 8-bit codes of one block of every row to take(word, codes), word in [0, 8) in any order: lane r
// holds elements 4 * word to 4 * word + 3 of row r. q points at the block of row 0.

template <typename Take>
HWY_INLINE void DecodeCodes(const BlockQ8_0* q, size_t stride, const Take& take) {
  const __m512i flip = _mm512_set1_epi8(-128);
  for (size_t half = 0; half < 2; ++half) {
    const Quad quad = Transpose(q->qs + 16 * half, stride);
    for (size_t j = 0; j < 4; ++j) take(4 * half + j, _mm512_xor_si512(quad.d[j], flip));
  }
}

// Codes from nibbles in low/high halves.
template <typename Take>
HWY_INLINE void DecodeNibbles(const uint8_t* qs, size_t stride, const Take& take) {
  const Quad quad = Transpose(qs, stride);
  for (size_t j = 0; j < 4; ++j) {
    take(j, LowNibblesOf(quad.d[j]));
    take(4 + j, HighNibblesOf(quad.d[j]));
  }
}
template <typename Take>
HWY_INLINE void DecodeCodes(const BlockQ4_0* q, size_t stride, const Take& take) {
  DecodeNibbles(q->qs, stride, take);
}
template <typename Take>
HWY_INLINE void DecodeCodes(const BlockQ4_1* q, size_t stride, const Take& take) {
  DecodeNibbles(q->qs, stride, take);
}

// Through a table of 16 signed values, with the zero added.
template <int kZero, typename Take>
HWY_INLINE void DecodeTable(const uint8_t* qs, size_t stride, const int8_t* table, const Take& take) {
  __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  values = _mm512_add_epi8(values, _mm512_set1_epi8(static_cast<char>(kZero)));
  DecodeNibbles(qs, stride, [&](size_t word, __m512i codes) { take(word, _mm512_shuffle_epi8(values, codes)); });
}
template <typename Take>
HWY_INLINE void DecodeCodes(const BlockIQ4NL* q, size_t stride, const Take& take) {
  DecodeTable<Format<BlockIQ4NL>::kZero>(q->qs, stride, kIq4Values.data(), take);
}
template <typename Take>
HWY_INLINE void DecodeCodes(const BlockMXFP4* q, size_t stride, const Take& take) {
  DecodeTable<Format<BlockMXFP4>::kZero>(q->qs, stride, kMxfp4Values.data(), take);
}

// With 16 added to the codes of the elements whose bit in qh is set.
template <typename Take>
HWY_INLINE void DecodeFiveBits(const uint8_t* qs, const uint8_t* qh, size_t stride, const Take& take) {
  alignas(64) uint32_t rows[kSlabRows];
  for (size_t r = 0; r < kSlabRows; ++r) std::memcpy(&rows[r], qh + r * stride, sizeof(uint32_t));
  const __m512i bits = _mm512_load_si512(rows);
  DecodeNibbles(qs, stride, [&](size_t word, __m512i codes) {
    // Bits 0..3 of the word to bit 4 of bytes 0..3: copies of the nibble shifted by 7 apart do not overlap at those
    // bits.
    const __m512i shifted = _mm512_srl_epi32(bits, _mm_cvtsi32_si128(static_cast<int>(4 * word)));
    const __m512i nibble = _mm512_and_si512(shifted, _mm512_set1_epi32(15));
    const __m512i spread = _mm512_mullo_epi32(nibble, _mm512_set1_epi32(0x00204081 << 4));
    take(word, _mm512_or_si512(codes, _mm512_and_si512(spread, _mm512_set1_epi8(16))));
  });
}
template <typename Take>
HWY_INLINE void DecodeCodes(const BlockQ5_0* q, size_t stride, const Take& take) {
  DecodeFiveBits(q->qs, q->qh, stride, take);
}
template <typename Take>
HWY_INLINE void DecodeCodes(const BlockQ5_1* q, size_t stride, const Take& take) {
  DecodeFiveBits(q->qs, q->qh, stride, take);
}

// 16 halves, one per row, as the lower (kOffset: both) halves of words. One by one: a gather takes longer.
HWY_INLINE __m256i LoadHalves(const std::byte* p, size_t stride) {
  const auto at = [&](size_t r) {
    uint16_t half;
    std::memcpy(&half, p + r * stride, sizeof(half));
    return static_cast<int16_t>(half);
  };
  const __m128i low = _mm_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
  const __m128i high = _mm_setr_epi16(at(8), at(9), at(10), at(11), at(12), at(13), at(14), at(15));
  return _mm256_set_m128i(high, low);
}

// Scales, and for formats that have them offsets, of one block of every row.
template <typename Block>
struct ScalesOf {
  __m512 scale, offset;
};
template <typename Block>
HWY_INLINE ScalesOf<Block> DecodeScales(const Block* q, size_t stride) {
  if constexpr (requires { q->e; }) {
    alignas(16) uint8_t exponents[kSlabRows];
    const auto* bytes = reinterpret_cast<const std::byte*>(&q->e);
    for (size_t r = 0; r < kSlabRows; ++r) exponents[r] = static_cast<uint8_t>(bytes[r * stride]);
    return {ExponentsToScales(_mm_load_si128(reinterpret_cast<const __m128i*>(exponents))), _mm512_setzero_ps()};
  } else {
    // d, and in formats that have it m, are in the first four bytes of a block.
    const auto* bytes = reinterpret_cast<const std::byte*>(q);
    const __m512 scale = _mm512_cvtph_ps(LoadHalves(bytes, stride));
    if constexpr (!Format<Block>::kOffset) return {scale, _mm512_setzero_ps()};
    return {scale, _mm512_cvtph_ps(LoadHalves(bytes + 2, stride))};
  }
}

// Most 32-element blocks of a slab: two slabs are 32 KiB of codes. Measured against 16: pp512 of Q4_0, Q4_K and Q8_0
// 2 to 4 % faster, since sums go to memory and back half as often; 64, beyond a first-level cache of 48 KiB, the same.
inline constexpr size_t kMaxSlabBlocks = 32;
// From one slab to the next: codes, then scales and offsets of two groups per block.
inline constexpr size_t kSlabFloats = kMaxSlabBlocks * (512 / sizeof(float) + 4 * kSlabRows);

template <typename Block>
HWY_NOINLINE void DecodeSlab32(const SlabRows& rows, size_t n_blocks, const Slab& slab) {
  const auto* blocks = reinterpret_cast<const Block*>(rows.first);  // packed: any address will do
  for (size_t b = 0; b < n_blocks; ++b) {
    const ScalesOf<Block> scales = DecodeScales(blocks + b, rows.stride);
    _mm512_store_ps(slab.scales + kSlabRows * b, scales.scale);
    if constexpr (Format<Block>::kOffset) _mm512_store_ps(slab.offsets + kSlabRows * b, scales.offset);
    uint8_t* to = slab.codes + 512 * b;
    DecodeCodes(blocks + b, rows.stride,
                [&](size_t word, __m512i codes) { _mm512_store_si512(to + 64 * word, codes); });
  }
}

// ---- Formats of 256-element blocks

// Byte i of every lane, widened.
template <int i>
HWY_INLINE __m512i ByteOf(__m512i v) {
  return _mm512_and_si512(_mm512_srli_epi32(v, 8 * i), _mm512_set1_epi32(255));
}
template <int i>
HWY_INLINE __m512i SignedByteOf(__m512i v) {
  return _mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * i), 24);
}

// out[i] = factor * byte i of v, lane by lane.
template <bool kSigned>
HWY_INLINE void ScaleFourBytes(__m512i v, __m512 factor, float* out) {
  const auto store = [&](size_t i, __m512i byte) {
    _mm512_storeu_ps(out + kSlabRows * i, _mm512_mul_ps(_mm512_cvtepi32_ps(byte), factor));
  };
  store(0, kSigned ? SignedByteOf<0>(v) : ByteOf<0>(v));
  store(1, kSigned ? SignedByteOf<1>(v) : ByteOf<1>(v));
  store(2, kSigned ? SignedByteOf<2>(v) : ByteOf<2>(v));
  store(3, kSigned ? SignedByteOf<3>(v) : ByteOf<3>(v));
}

// Scales and offsets of Q4_K and Q5_K. The first 16 bytes of a block are d, dmin and the 12 bytes of UnpackK4Scales.
template <typename Block>
HWY_INLINE void DecodeK4Scales(const Block* q, size_t stride, float* scales, float* offsets) {
  const Quad head = Transpose(q, stride);
  const __m512 d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(head.d[0]));
  const __m512 dmin = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(head.d[0], 16)));
  const __m512 minus_dmin = _mm512_sub_ps(_mm512_setzero_ps(), dmin);
  const __m512i six = _mm512_set1_epi8(63), four = _mm512_set1_epi8(15), top = _mm512_set1_epi8(0x30);
  const auto upper = [&](__m512i low_part, __m512i word) {
    const __m512i high_part = _mm512_and_si512(_mm512_srli_epi32(word, 2), top);
    return _mm512_or_si512(_mm512_and_si512(low_part, four), high_part);
  };
  ScaleFourBytes<false>(_mm512_and_si512(head.d[1], six), d, scales);
  ScaleFourBytes<false>(upper(head.d[3], head.d[1]), d, scales + 64);
  ScaleFourBytes<false>(_mm512_and_si512(head.d[2], six), minus_dmin, offsets);
  ScaleFourBytes<false>(upper(_mm512_srli_epi32(head.d[3], 4), head.d[2]), minus_dmin, offsets + 64);
}

// DecodeSuperScales: scales and offsets of every group of one block of every row, [8 * groups, 16].
// DecodeSuper hands the codes to take(part, word, codes) as DecodeCodes does, part being one of 8 runs of 32 elements;
// each part's words come together with those of at most three others.

HWY_INLINE void DecodeSuperScales(const BlockQ4K* q, size_t stride, float* scales, float* offsets) {
  DecodeK4Scales(q, stride, scales, offsets);
}
template <typename Take>
HWY_INLINE void DecodeSuper(const BlockQ4K* q, size_t stride, const Take& take) {
#pragma GCC unroll 8
  for (size_t chunk = 0; chunk < 8; ++chunk) {  // 16 bytes: half of two groups
    const Quad quad = Transpose(q->qs + 16 * chunk, stride);
    const size_t part = chunk / 2 * 2, word = chunk % 2 * 4;
    for (size_t j = 0; j < 4; ++j) {
      take(part, word + j, LowNibblesOf(quad.d[j]));
      take(part + 1, word + j, HighNibblesOf(quad.d[j]));
    }
  }
}

HWY_INLINE void DecodeSuperScales(const BlockQ5K* q, size_t stride, float* scales, float* offsets) {
  DecodeK4Scales(q, stride, scales, offsets);
}
template <typename Take>
HWY_INLINE void DecodeSuper(const BlockQ5K* q, size_t stride, const Take& take) {
  const __m512i sixteen = _mm512_set1_epi8(16);
#pragma GCC unroll 8
  for (size_t chunk = 0; chunk < 8; ++chunk) {
    const Quad quad = Transpose(q->qs + 16 * chunk, stride);
    // 16 of the 32 elements of every group; bits 2 p and 2 p + 1 of every byte belong to pair p of groups.
    const Quad high = Transpose(q->qh + chunk % 2 * 16, stride);
    const size_t part = chunk / 2 * 2, word = chunk % 2 * 4;
    for (size_t j = 0; j < 4; ++j) {
      const __m512i bits = _mm512_srl_epi16(high.d[j], _mm_cvtsi32_si128(static_cast<int>(part)));
      const __m512i low_fifth = _mm512_and_si512(_mm512_slli_epi16(bits, 4), sixteen);
      const __m512i high_fifth = _mm512_and_si512(_mm512_slli_epi16(bits, 3), sixteen);
      take(part, word + j, _mm512_or_si512(LowNibblesOf(quad.d[j]), low_fifth));
      take(part + 1, word + j, _mm512_or_si512(HighNibblesOf(quad.d[j]), high_fifth));
    }
  }
}

HWY_INLINE void DecodeSuperScales(const BlockQ6K* q, size_t stride, float* scales, float*) {
  const __m512 d = _mm512_cvtph_ps(LoadHalves(reinterpret_cast<const std::byte*>(&q->d), stride));
  const Quad bytes = Transpose(q->scales, stride);
  for (size_t j = 0; j < 4; ++j) ScaleFourBytes<true>(bytes.d[j], d, scales + 64 * j);
}
template <typename Take>
HWY_INLINE void DecodeSuper(const BlockQ6K* q, size_t stride, const Take& take) {
  const __m512i top = _mm512_set1_epi8(0x30);
#pragma GCC unroll 4
  for (size_t chunk = 0; chunk < 4; ++chunk) {  // half of the block, half of each 32 elements
    const size_t half = chunk / 2, side = chunk % 2, part = 4 * half;
    const Quad two = Transpose(q->qh + 32 * half + 16 * side, stride);
    const Quad low_a = Transpose(q->ql + 64 * half + 16 * side, stride);
    const Quad low_b = Transpose(q->ql + 64 * half + 32 + 16 * side, stride);
    for (size_t j = 0; j < 4; ++j) {
      const size_t word = 4 * side + j;
      const auto with = [&](__m512i low, __m512i high) { return _mm512_or_si512(low, _mm512_and_si512(high, top)); };
      take(part, word, with(LowNibblesOf(low_a.d[j]), _mm512_slli_epi16(two.d[j], 4)));
      take(part + 1, word, with(LowNibblesOf(low_b.d[j]), _mm512_slli_epi16(two.d[j], 2)));
      take(part + 2, word, with(HighNibblesOf(low_a.d[j]), two.d[j]));
      take(part + 3, word, with(HighNibblesOf(low_b.d[j]), _mm512_srli_epi16(two.d[j], 2)));
    }
  }
}

template <typename Block>
HWY_NOINLINE void DecodeSlab256(const SlabRows& rows, size_t n_blocks, const Slab& slab) {
  constexpr size_t kScales = 8 * Format<Block>::kGroups * kSlabRows;  // per super block
  const auto* blocks = reinterpret_cast<const Block*>(rows.first);    // packed: any address will do
  for (size_t s = 0; s < n_blocks / 8; ++s) {
    DecodeSuperScales(blocks + s, rows.stride, slab.scales + kScales * s, slab.offsets + kScales * s);
    uint8_t* to = slab.codes + 4096 * s;
    DecodeSuper(blocks + s, rows.stride, [&](size_t part, size_t word, __m512i codes) {
      _mm512_store_si512(to + 512 * part + 64 * word, codes);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_POP_ATTRIBUTES

#endif  // HWY_AVX3_DL
#endif  // per-target include guard
