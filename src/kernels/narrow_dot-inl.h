// SPDX-License-Identifier: Apache-2.0
// The integer sums of the integer path without AVX-512 (definition in integer_strip.h): activations as integers, and
// their products with codes, for every set of instructions that has dot products. Matrix products: narrow_pairs-inl.h.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_NARROW_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_NARROW_DOT_INL_H_
#undef NPUMOE_KERNELS_NARROW_DOT_INL_H_
#else
#define NPUMOE_KERNELS_NARROW_DOT_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/narrow_lanes-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

// See integer_rows-inl.h.
inline constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
inline constexpr float kTinyGroup = 1e-30f;

// 32 activations, x = scale * q, with q in kCodeBytes as the instructions want it.
template <int kBytesOfX, int kCodeBytes>
struct alignas(32) XBlock {
  static constexpr int kBytes = kBytesOfX;
  static constexpr float kMost = kBytes == 1 ? 127.0f : 32639.0f;
  int8_t codes[kCodeBytes];
  float scale;
  float magic;       // 8 bits: kMagic * scale, exact
  float sum[2];      // scale * sum of q over each group
  int32_t start[2];  // -zero * sum of q over each group; 8 bits: added to the bits of kMagic
};

// A group's integer sum, with what `start` adds, times the activations' scale.
template <int kCodeBytes>
HWY_INLINE VF32 ScaledSum(const XBlock<1, kCodeBytes>& x, VI32 total) {
  return hn::MulSub(hn::BitCast(F32(), total), hn::Set(F32(), x.scale), hn::Set(F32(), x.magic));
}
template <int kCodeBytes>
HWY_INLINE VF32 ScaledSum(const XBlock<2, kCodeBytes>& x, VI32 total) {
  return hn::Mul(hn::ConvertTo(F32(), total), hn::Set(F32(), x.scale));
}

// A Dot is a way to make integer sums:
//   X            activations; Store writes the codes of 32 integers
//   kTileRows    most activations that are multiplied with 16 weight rows at a time: their sums, the codes and one
//                activation are to fit the registers, 16 on x86 and 32 on Arm
//   kSigned      codes of 8 bits are wanted as signed bytes, see narrow_decode-inl.h
//   Codes        of four elements of kLanes weight rows, as Prepare makes them once for all activations
//   WordOf<i>    elements 4 i to 4 i + 3 of x, for all lanes
//   Sum          of one group: Start, then Add<i> for the i-th word of the group in ascending order, then Total

inline constexpr size_t kVectorsOfX = 32 / kLanes;

// q as bytes.
HWY_INLINE void StoreBytes(const VI32 (&q)[kVectorsOfX], int8_t* to) {
  const hn::Rebind<int8_t, I32> d8;
  for (size_t i = 0; i < kVectorsOfX; ++i) hn::StoreU(hn::DemoteTo(d8, q[i]), d8, to + kLanes * i);
}

// q = 256 * high + low with signed bytes.
HWY_INLINE void StoreHighAndLow(const VI32 (&q)[kVectorsOfX], int8_t* high, int8_t* low) {
  VI32 h[kVectorsOfX], l[kVectorsOfX];
  for (size_t i = 0; i < kVectorsOfX; ++i) {
    h[i] = hn::ShiftRight<8>(hn::Add(q[i], hn::Set(I32(), 128)));
    l[i] = hn::Sub(q[i], hn::ShiftLeft<8>(h[i]));
  }
  StoreBytes(h, high);
  StoreBytes(l, low);
}

#if HWY_ARCH_X86

// Four bytes for every lane.
template <size_t kWord>
HWY_INLINE __m256i WordAt(const int8_t* codes) {
  return _mm256_set1_epi32(LoadAs<int32_t>(codes + 4 * kWord));
}

// Keeps GCC from adding in another order: it would make all products first, and has no registers for them.
HWY_INLINE __m256i Pinned(__m256i sum) {
#if HWY_COMPILER_GCC_ACTUAL
  asm("" : "+x"(sum));
#endif
  return sum;
}

// vpdpbusd of AVX-VNNI. As text: compilers know it only in functions for which they may use it unasked, too.
HWY_INLINE __m256i DotBytes(__m256i sum, __m256i codes, __m256i x) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes), "x"(x));
  return sum;
}

// Activations of 8 bits.
struct VnniDot {
  using X = XBlock<1, 32>;
  static constexpr size_t kTileRows = 6;
  static constexpr bool kSigned = false;
  using Codes = __m256i;
  using Word = __m256i;
  static HWY_INLINE void Store(const VI32 (&q)[kVectorsOfX], X* x) { StoreBytes(q, x->codes); }
  static HWY_INLINE Codes Prepare(VBytes codes) { return codes.raw; }
  template <size_t kWord>
  static HWY_INLINE Word WordOf(const X& x) {
    return WordAt<kWord>(x.codes);
  }
  struct Sum {
    __m256i sum;
    HWY_INLINE void Start(const X& x, int group) { sum = _mm256_set1_epi32(x.start[group]); }
    template <size_t>
    HWY_INLINE void Add(Codes codes, Word word) {
      sum = DotBytes(sum, codes, word);
    }
    HWY_INLINE VI32 Total(const X&, int) const { return VI32{sum}; }
  };
};

// Codes of up to 6 bits times activations of 8, summed in 16 bits as long as they cannot overflow.
template <int kBits>
struct MaddBytesDot {
  using X = XBlock<1, 32>;
  static constexpr size_t kTileRows = 4;
  static constexpr bool kSigned = false;
  using Codes = __m256i;
  using Word = __m256i;
  // Words per sum of 16 bits: 8, 4 and 2 for 4, 5 and 6 bits. vpmaddubsw adds two products.
  static constexpr size_t kDepth = size_t{128} >> kBits;
  static_assert(kDepth > 0 && kDepth * 2 * ((1 << kBits) - 1) * 127 <= 32767);
  static HWY_INLINE void Store(const VI32 (&q)[kVectorsOfX], X* x) { StoreBytes(q, x->codes); }
  static HWY_INLINE Codes Prepare(VBytes codes) { return codes.raw; }
  template <size_t kWord>
  static HWY_INLINE Word WordOf(const X& x) {
    return WordAt<kWord>(x.codes);
  }
  struct Sum {
    __m256i part, total;
    HWY_INLINE void Start(const X&, int) {}
    template <size_t kAt>
    HWY_INLINE void Add(Codes codes, Word word) {
      const __m256i products = _mm256_maddubs_epi16(codes, word);
      part = Pinned(kAt % kDepth == 0 ? products : _mm256_add_epi16(part, products));
      if constexpr (kAt % kDepth == kDepth - 1) {
        const __m256i wide = _mm256_madd_epi16(part, _mm256_set1_epi16(1));
        total = Pinned(kAt < kDepth ? wide : _mm256_add_epi32(total, wide));
      }
    }
    HWY_INLINE VI32 Total(const X& x, int group) const {
      return VI32{_mm256_add_epi32(total, _mm256_set1_epi32(x.start[group]))};
    }
  };
};

// Codes of any format widened to 16 bits. Sums stay below 32 * 128 * 32639.
template <int kBytes>
struct MaddPairsDot {
  using X = XBlock<kBytes, 64>;  // of every four elements, 16 bits each: first, third, second, fourth
  static constexpr size_t kTileRows = 4;
  static constexpr bool kSigned = true;
  struct Codes {
    __m256i even, odd;
  };
  struct Word {
    __m256i even, odd;
  };
  static HWY_INLINE void Store(const VI32 (&q)[kVectorsOfX], X* x) {
    for (size_t i = 0; i < kVectorsOfX; ++i) {
      const __m256i later = _mm256_slli_epi32(_mm256_shuffle_epi32(q[i].raw, 0x0e), 16);  // third, fourth
      const __m256i pairs = _mm256_blend_epi16(q[i].raw, later, 0xaa);                    // in words 0, 1, 4, 5
      const __m256i packed = _mm256_permute4x64_epi64(pairs, 0x08);
      _mm_store_si128(reinterpret_cast<__m128i*>(x->codes + 16 * i), _mm256_castsi256_si128(packed));
    }
  }
  static HWY_INLINE Codes Prepare(VBytes codes) {
    return {_mm256_srai_epi16(_mm256_slli_epi16(codes.raw, 8), 8), _mm256_srai_epi16(codes.raw, 8)};
  }
  template <size_t kWord>
  static HWY_INLINE Word WordOf(const X& x) {
    return {WordAt<2 * kWord>(x.codes), WordAt<2 * kWord + 1>(x.codes)};
  }
  struct Sum {
    __m256i sum;
    HWY_INLINE void Start(const X& x, int group) { sum = _mm256_set1_epi32(x.start[group]); }
    template <size_t>
    HWY_INLINE void Add(const Codes& codes, const Word& word) {
      sum = Pinned(_mm256_add_epi32(sum, _mm256_madd_epi16(codes.even, word.even)));
      sum = Pinned(_mm256_add_epi32(sum, _mm256_madd_epi16(codes.odd, word.odd)));
    }
    HWY_INLINE VI32 Total(const X&, int) const { return VI32{sum}; }
  };
};

#else  // Arm

// sdot with word kLane of x. As text where the program is not compiled for CPUs that have it, which Clang's assembler
// does not take: such a build has no integer path (HasByteDots), and the stand-in is never called.
template <size_t kLane>
HWY_INLINE int32x4_t DotBytes(int32x4_t sum, int8x16_t codes, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_laneq_s32(sum, codes, x, kLane);
#elif HWY_COMPILER_GCC_ACTUAL
  asm(".arch armv8.2-a+dotprod+crypto\n\tsdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sum) : "w"(codes), "w"(x), "i"(kLane));
  return sum;
#else
  const int8x16_t word = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(x), kLane));
  const int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(word)), high = vmull_high_s8(codes, word);
  return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}

template <int kBytes>
struct ArmDot;

template <>
struct ArmDot<1> {
  using X = XBlock<1, 32>;
  static constexpr size_t kTileRows = 4;
  static constexpr bool kSigned = true;
  using Codes = int8x16_t;
  using Word = int8x16_t;  // four words: which is known from its place
  static HWY_INLINE void Store(const VI32 (&q)[kVectorsOfX], X* x) { StoreBytes(q, x->codes); }
  static HWY_INLINE Codes Prepare(VBytes codes) { return vreinterpretq_s8_u8(codes.raw); }
  template <size_t kWord>
  static HWY_INLINE Word WordOf(const X& x) {
    return vld1q_s8(x.codes + kWord / 4 * 16);
  }
  struct Sum {
    int32x4_t sum;
    HWY_INLINE void Start(const X& x, int group) { sum = vdupq_n_s32(x.start[group]); }
    template <size_t kAt>
    HWY_INLINE void Add(Codes codes, Word word) {
      sum = DotBytes<kAt % 4>(sum, codes, word);
    }
    HWY_INLINE VI32 Total(const X&, int) const { return VI32{sum}; }
  };
};

template <>
struct ArmDot<2> {
  using X = XBlock<2, 64>;  // high bytes, low bytes
  static constexpr size_t kTileRows = 4;
  static constexpr bool kSigned = true;
  using Codes = int8x16_t;
  struct Word {
    int8x16_t high, low;
  };
  static HWY_INLINE void Store(const VI32 (&q)[kVectorsOfX], X* x) { StoreHighAndLow(q, x->codes, x->codes + 32); }
  static HWY_INLINE Codes Prepare(VBytes codes) { return vreinterpretq_s8_u8(codes.raw); }
  template <size_t kWord>
  static HWY_INLINE Word WordOf(const X& x) {
    return {vld1q_s8(x.codes + kWord / 4 * 16), vld1q_s8(x.codes + 32 + kWord / 4 * 16)};
  }
  struct Sum {
    int32x4_t high, low;
    HWY_INLINE void Start(const X& x, int group) {
      high = vdupq_n_s32(0);
      low = vdupq_n_s32(x.start[group]);
    }
    template <size_t kAt>
    HWY_INLINE void Add(Codes codes, const Word& word) {
      high = DotBytes<kAt % 4>(high, codes, word.high);
      low = DotBytes<kAt % 4>(low, codes, word.low);
    }
    HWY_INLINE VI32 Total(const X&, int) const { return VI32{vaddq_s32(vshlq_n_s32(high, 8), low)}; }
  };
};

#endif  // HWY_ARCH_X86

// ---- Activations to integers

// 32 activations to integers q up to `most`. Returns their scale.
HWY_INLINE float RoundGroup(const float* x, float most, VI32 (&q)[kVectorsOfX]) {
  const F32 d;
  const I32 di;
  // As integers, magnitudes of floats compare as they should, and infinities and NaNs are above all others.
  VI32 largest = hn::Zero(di);
  for (size_t i = 0; i < kVectorsOfX; ++i) {
    const VI32 bits = hn::BitCast(di, hn::LoadU(d, x + kLanes * i));
    largest = hn::Max(largest, hn::And(bits, hn::Set(di, 0x7fffffff)));
    q[i] = hn::Zero(di);
  }
  const int32_t max_bits = hn::GetLane(hn::MaxOfLanes(di, largest));
  if (max_bits >= 0x7f800000) return __builtin_nanf("");
  const float max = std::bit_cast<float>(max_bits);
  if (max < kTinyGroup) return 0.0f;
  const VF32 inverse = hn::Set(d, most / max);
  for (size_t i = 0; i < kVectorsOfX; ++i) q[i] = hn::NearestInt(hn::Mul(hn::LoadU(d, x + kLanes * i), inverse));
  return max / most;
}

// kGroups: groups of weights per 32 elements, 1 or 2.
template <typename Dot, int kGroups>
HWY_INLINE void QuantizeBlock(const float* x, int32_t zero, typename Dot::X* out) {
  using X = typename Dot::X;
  VI32 q[kVectorsOfX];
  float scale = RoundGroup(x, X::kMost, q);
  Dot::Store(q, out);
  VI32 halves[2] = {q[0], q[kVectorsOfX / 2]};
  for (size_t i = 1; i < kVectorsOfX / 2; ++i) {
    halves[0] = hn::Add(halves[0], q[i]);
    halves[1] = hn::Add(halves[1], q[kVectorsOfX / 2 + i]);
  }
  const I32 di;
  int32_t sum[2];
  if constexpr (kGroups == 1) {
    sum[0] = sum[1] = hn::GetLane(hn::SumOfLanes(di, hn::Add(halves[0], halves[1])));
  } else {
    sum[0] = hn::GetLane(hn::SumOfLanes(di, halves[0]));
    sum[1] = hn::GetLane(hn::SumOfLanes(di, halves[1]));
  }
  if constexpr (X::kBytes == 1) scale = std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & ~uint32_t{3});
  out->scale = scale;
  out->magic = kMagic * scale;
  for (int g = 0; g < 2; ++g) {
    out->sum[g] = scale * static_cast<float>(sum[g]);
    out->start[g] = (X::kBytes == 1 ? std::bit_cast<int32_t>(kMagic) : 0) - zero * sum[g];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX2 or Arm
#endif  // per-target include guard
