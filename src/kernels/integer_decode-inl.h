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
#include "tensor/blocks.h"
#include "tensor/float16.h"

#if HWY_TARGET == HWY_AVX3_DL

#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace npumoe {
namespace HWY_NAMESPACE {

inline constexpr size_t kSlabRows = 16;

// Codes, scales and offsets of 16 weight rows over some 32-element blocks. Lane r is row r.
struct Slab {
  uint8_t* codes;  // [blocks, 8, 16, 4]: four consecutive elements of every row
  float* scales;   // [blocks * groups, 16]
  float* offsets;  // [blocks * groups, 16], for formats that have them
};

// 16 rows of one format: row r starts at first + r * stride.
struct SlabRows {
  const std::byte* first;
  size_t stride;
};

// Asks for the same bytes of the rows that are decoded next, a few lines with every block of this slab: a read from
// memory takes as long as hundreds of multiplications.
class AheadOf {
 public:
  // `rows_ahead` rows further on; `row_bytes` bytes of each of 16 rows, in n_steps steps.
  AheadOf(const SlabRows& rows, size_t rows_ahead, size_t row_bytes, size_t n_steps)
      : row_(rows.first + rows_ahead * rows.stride),
        stride_(rows.stride),
        row_bytes_(row_bytes),
        left_(rows_ahead == 0 ? 0 : kSlabRows * (row_bytes / kLine + 1)),
        per_step_(n_steps == 0 ? 0 : (left_ + n_steps - 1) / n_steps) {}

  HWY_INLINE void Step() {
    for (size_t i = 0; i < per_step_ && left_ != 0; ++i, --left_) {
      _mm_prefetch(reinterpret_cast<const char*>(row_ + at_), _MM_HINT_T1);
      at_ += kLine;
      if (at_ > row_bytes_) {
        at_ = 0;
        row_ += stride_;
      }
    }
  }

 private:
  static constexpr size_t kLine = 64;
  const std::byte* row_;
  size_t stride_, row_bytes_, left_, per_step_;
  size_t at_ = 0;
};

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

HWY_INLINE __m512i LowNibblesOf(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
HWY_INLINE __m512i HighNibblesOf(__m512i v) { return LowNibblesOf(_mm512_srli_epi16(v, 4)); }

// The f16 in the lower half of every word, to f32.
HWY_INLINE __m512 LowHalvesOf(__m512i words) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)); }

// Mxfp4Scale of bytes, [16 * count].
HWY_INLINE void ExponentsToScales(const uint8_t* exponents, size_t count, float* out) {
  const __m512i one = _mm512_set1_epi32(1);
  for (size_t i = 0; i < count; ++i) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(exponents + 16 * i)));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __m512i bits = _mm512_mask_mov_epi32(normal, _mm512_cmple_epi32_mask(e, one), subnormal);
    _mm512_storeu_si512(out + 16 * i, bits);
  }
}

// ---- What the formats have in common: elements per block, zero of the codes, groups per 32 elements, offsets or not.

template <typename Block>
struct Format;
template <>
struct Format<BlockQ8_0> {
  static constexpr size_t kElems = 32;
  static constexpr int kZero = 128, kGroups = 1;
  static constexpr bool kOffset = false;
};
template <>
struct Format<BlockQ4_0> {
  static constexpr size_t kElems = 32;
  static constexpr int kZero = 8, kGroups = 1;
  static constexpr bool kOffset = false;
};
template <>
struct Format<BlockQ4_1> {
  static constexpr size_t kElems = 32;
  static constexpr int kZero = 0, kGroups = 1;
  static constexpr bool kOffset = true;
};
template <>
struct Format<BlockQ5_0> {
  static constexpr size_t kElems = 32;
  static constexpr int kZero = 16, kGroups = 1;
  static constexpr bool kOffset = false;
};
template <>
struct Format<BlockQ5_1> : Format<BlockQ4_1> {};
template <>
struct Format<BlockIQ4NL> : Format<BlockQ8_0> {};
template <>
struct Format<BlockMXFP4> : Format<BlockQ8_0> {};
template <>
struct Format<BlockQ4K> {
  static constexpr size_t kElems = 256;
  static constexpr int kZero = 0, kGroups = 1;
  static constexpr bool kOffset = true;
};
template <>
struct Format<BlockQ5K> : Format<BlockQ4K> {};
template <>
struct Format<BlockQ6K> {
  static constexpr size_t kElems = 256;
  static constexpr int kZero = 32, kGroups = 2;
  static constexpr bool kOffset = false;
};

// ---- Formats of 32-element blocks

// The 8-bit codes of one block of every row: q points at the block of row 0.
HWY_INLINE void DecodeCodes(const BlockQ8_0* q, size_t stride, uint8_t* codes) {
  const __m512i flip = _mm512_set1_epi8(-128);
  for (size_t half = 0; half < 2; ++half) {
    const Quad quad = Transpose(q->qs + 16 * half, stride);
    for (size_t j = 0; j < 4; ++j) {
      _mm512_store_si512(codes + 256 * half + 64 * j, _mm512_xor_si512(quad.d[j], flip));
    }
  }
}

// Codes from nibbles in low/high halves, as they are or through a table of 16 signed values.
template <bool kTable>
HWY_INLINE void DecodeNibbleCodes(const uint8_t* qs, size_t stride, const int8_t* table, uint8_t* codes) {
  const Quad quad = Transpose(qs, stride);
  __m512i values = _mm512_setzero_si512();
  if constexpr (kTable) {
    values = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    values = _mm512_xor_si512(values, _mm512_set1_epi8(-128));
  }
  for (size_t j = 0; j < 4; ++j) {
    __m512i low = LowNibblesOf(quad.d[j]), high = HighNibblesOf(quad.d[j]);
    if constexpr (kTable) {
      low = _mm512_shuffle_epi8(values, low);
      high = _mm512_shuffle_epi8(values, high);
    }
    _mm512_store_si512(codes + 64 * j, low);
    _mm512_store_si512(codes + 256 + 64 * j, high);
  }
}
HWY_INLINE void DecodeCodes(const BlockQ4_0* q, size_t stride, uint8_t* codes) {
  DecodeNibbleCodes<false>(q->qs, stride, nullptr, codes);
}
HWY_INLINE void DecodeCodes(const BlockQ4_1* q, size_t stride, uint8_t* codes) {
  DecodeNibbleCodes<false>(q->qs, stride, nullptr, codes);
}
HWY_INLINE void DecodeCodes(const BlockIQ4NL* q, size_t stride, uint8_t* codes) {
  DecodeNibbleCodes<true>(q->qs, stride, kIq4Values.data(), codes);
}
HWY_INLINE void DecodeCodes(const BlockMXFP4* q, size_t stride, uint8_t* codes) {
  DecodeNibbleCodes<true>(q->qs, stride, kMxfp4Values.data(), codes);
}

// Adds 16 to the codes of the elements whose bit in qh is set: word j of `codes` holds elements 4 j to 4 j + 3.
HWY_INLINE void AddFifthBits(const uint8_t* qh, size_t stride, uint8_t* codes) {
  alignas(64) uint32_t bits[kSlabRows];
  for (size_t r = 0; r < kSlabRows; ++r) std::memcpy(&bits[r], qh + r * stride, sizeof(uint32_t));
  __m512i left = _mm512_load_si512(bits);
  for (size_t j = 0; j < 8; ++j) {
    // Bits 0..3 of the word to bit 4 of bytes 0..3: copies of the nibble shifted by 7 apart do not overlap at those
    // bits.
    const __m512i nibble = _mm512_and_si512(left, _mm512_set1_epi32(15));
    const __m512i spread = _mm512_mullo_epi32(nibble, _mm512_set1_epi32(0x00204081 << 4));
    const __m512i fifth = _mm512_and_si512(spread, _mm512_set1_epi8(16));
    _mm512_store_si512(codes + 64 * j, _mm512_or_si512(_mm512_load_si512(codes + 64 * j), fifth));
    left = _mm512_srli_epi32(left, 4);
  }
}
HWY_INLINE void DecodeCodes(const BlockQ5_0* q, size_t stride, uint8_t* codes) {
  DecodeNibbleCodes<false>(q->qs, stride, nullptr, codes);
  AddFifthBits(q->qh, stride, codes);
}
HWY_INLINE void DecodeCodes(const BlockQ5_1* q, size_t stride, uint8_t* codes) {
  DecodeNibbleCodes<false>(q->qs, stride, nullptr, codes);
  AddFifthBits(q->qh, stride, codes);
}

// Most 32-element blocks of a slab: 16 * 512 bytes of codes, so that two slabs with their scales stay in a first-level
// cache. Measured: 24, 32 and 64 are as fast for many activations and up to 20 % slower for one.
inline constexpr size_t kMaxSlabBlocks = 16;

template <typename Block>
HWY_NOINLINE void DecodeSlab32(const SlabRows& rows, size_t n_blocks, size_t rows_ahead, const Slab& slab) {
  const auto block = [&](size_t r, size_t b) {
    return reinterpret_cast<const Block*>(rows.first + r * rows.stride) + b;  // packed: any address will do
  };
  if constexpr (requires(Block q) { q.d; }) {
    // d, and in formats that have it m, are in the first four bytes of a block.
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int32_t>(rows.stride)));
    for (size_t b = 0; b < n_blocks; ++b) {
      const __m512i words = _mm512_i32gather_epi32(at, block(0, b), 1);
      _mm512_store_ps(slab.scales + kSlabRows * b, LowHalvesOf(words));
      if constexpr (Format<Block>::kOffset) {
        _mm512_store_ps(slab.offsets + kSlabRows * b, LowHalvesOf(_mm512_srli_epi32(words, 16)));
      }
    }
  } else {
    alignas(64) uint8_t exponents[kMaxSlabBlocks * kSlabRows];
    for (size_t r = 0; r < kSlabRows; ++r) {
      for (size_t b = 0; b < n_blocks; ++b) exponents[kSlabRows * b + r] = block(r, b)->e;
    }
    ExponentsToScales(exponents, n_blocks, slab.scales);
  }
  AheadOf ahead(rows, rows_ahead, n_blocks * sizeof(Block), n_blocks);
  for (size_t b = 0; b < n_blocks; ++b) {
    ahead.Step();
    DecodeCodes(block(0, b), rows.stride, slab.codes + 512 * b);
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

// codes: [8 blocks of 32, 8, 16, 4].
HWY_INLINE void DecodeSuper(const BlockQ4K* q, size_t stride, uint8_t* codes, float* scales, float* offsets) {
  DecodeK4Scales(q, stride, scales, offsets);
  for (size_t part = 0; part < 8; ++part) {  // 16 bytes: half of two groups
    const Quad quad = Transpose(q->qs + 16 * part, stride);
    uint8_t* to = codes + 1024 * (part / 2) + 256 * (part % 2);
    for (size_t j = 0; j < 4; ++j) {
      _mm512_store_si512(to + 64 * j, LowNibblesOf(quad.d[j]));
      _mm512_store_si512(to + 512 + 64 * j, HighNibblesOf(quad.d[j]));
    }
  }
}

HWY_INLINE void DecodeSuper(const BlockQ5K* q, size_t stride, uint8_t* codes, float* scales, float* offsets) {
  DecodeK4Scales(q, stride, scales, offsets);
  const __m512i sixteen = _mm512_set1_epi8(16);
  for (size_t half = 0; half < 2; ++half) {  // 16 of the 32 elements of every group
    Quad high = Transpose(q->qh + 16 * half, stride);
    for (size_t pair = 0; pair < 4; ++pair) {
      const Quad quad = Transpose(q->qs + 32 * pair + 16 * half, stride);
      uint8_t* to = codes + 1024 * pair + 256 * half;
      for (size_t j = 0; j < 4; ++j) {
        // Bits 0 and 1 of every byte belong to this pair of groups; the next two move down for the next.
        const __m512i low_fifth = _mm512_and_si512(_mm512_slli_epi16(high.d[j], 4), sixteen);
        const __m512i high_fifth = _mm512_and_si512(_mm512_slli_epi16(high.d[j], 3), sixteen);
        _mm512_store_si512(to + 64 * j, _mm512_or_si512(LowNibblesOf(quad.d[j]), low_fifth));
        _mm512_store_si512(to + 512 + 64 * j, _mm512_or_si512(HighNibblesOf(quad.d[j]), high_fifth));
        high.d[j] = _mm512_srli_epi16(high.d[j], 2);
      }
    }
  }
}

HWY_INLINE void DecodeSuper(const BlockQ6K* q, size_t stride, uint8_t* codes, float* scales, float*) {
  alignas(32) uint16_t halves[kSlabRows];
  for (size_t r = 0; r < kSlabRows; ++r) {
    std::memcpy(&halves[r], reinterpret_cast<const std::byte*>(&q->d) + r * stride, sizeof(uint16_t));
  }
  const __m512 d = _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(halves)));
  const Quad bytes = Transpose(q->scales, stride);
  for (size_t j = 0; j < 4; ++j) ScaleFourBytes<true>(bytes.d[j], d, scales + 64 * j);
  const __m512i top = _mm512_set1_epi8(0x30);
  for (size_t part = 0; part < 4; ++part) {  // half of the block, half of each 32 elements
    const size_t half = part / 2, side = part % 2;
    const Quad two = Transpose(q->qh + 32 * half + 16 * side, stride);
    const Quad low_a = Transpose(q->ql + 64 * half + 16 * side, stride);
    const Quad low_b = Transpose(q->ql + 64 * half + 32 + 16 * side, stride);
    uint8_t* to = codes + 2048 * half + 256 * side;
    for (size_t j = 0; j < 4; ++j) {
      const auto store = [&](size_t group, __m512i low, __m512i high) {
        _mm512_store_si512(to + 512 * group + 64 * j, _mm512_or_si512(low, _mm512_and_si512(high, top)));
      };
      store(0, LowNibblesOf(low_a.d[j]), _mm512_slli_epi16(two.d[j], 4));
      store(1, LowNibblesOf(low_b.d[j]), _mm512_slli_epi16(two.d[j], 2));
      store(2, HighNibblesOf(low_a.d[j]), two.d[j]);
      store(3, HighNibblesOf(low_b.d[j]), _mm512_srli_epi16(two.d[j], 2));
    }
  }
}

template <typename Block>
HWY_NOINLINE void DecodeSlab256(const SlabRows& rows, size_t n_blocks, size_t rows_ahead, const Slab& slab) {
  constexpr size_t kScales = 8 * Format<Block>::kGroups * kSlabRows;  // per super block
  const auto* blocks = reinterpret_cast<const Block*>(rows.first);    // packed: any address will do
  AheadOf ahead(rows, rows_ahead, n_blocks / 8 * sizeof(Block), n_blocks / 8);
  for (size_t s = 0; s < n_blocks / 8; ++s) {
    ahead.Step();
    DecodeSuper(blocks + s, rows.stride, slab.codes + 4096 * s, slab.scales + kScales * s, slab.offsets + kScales * s);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_POP_ATTRIBUTES

#endif  // HWY_AVX3_DL
#endif  // per-target include guard
