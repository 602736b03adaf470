// SPDX-License-Identifier: Apache-2.0
// A few activations times 16 weight rows straight from their blocks: codes are multiplied as they are unpacked and
// never written down. For so few activations that reading the weights is the work. See integer_strip.h. AVX-512 only.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_INTEGER_DIRECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_INTEGER_DIRECT_INL_H_
#undef NPUMOE_KERNELS_INTEGER_DIRECT_INL_H_
#else
#define NPUMOE_KERNELS_INTEGER_DIRECT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/integer_decode-inl.h"
#include "kernels/integer_rows-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace npumoe {
namespace HWY_NAMESPACE {

// Most activations of one call for any format, and for one: beyond, unpacking once into a slab is faster. Formats of
// two groups keep too many sums for the registers. Measured: matmul_bench.
inline constexpr size_t kDirectRows = 4;
template <typename Block>
inline constexpr size_t kDirectRowsOf = Format<Block>::kGroups == 1 ? kDirectRows : 1;

template <int kBytes>
struct Direct {
  const XBlock<kBytes>* x[kDirectRows];
  SlabRows rows;
  bool ahead;       // the next 16 rows are wanted next
  size_t n_blocks;  // of 32 elements
  float* y[kDirectRows];
};

// The integer sums of one group, for one activation.
template <int kBytes>
struct GroupSum;

template <>
struct GroupSum<1> {
  __m512i high;
  HWY_INLINE void Start(const XBlock<1>& x, int group) { high = _mm512_set1_epi32(x.start[group]); }
  HWY_INLINE void Add(const XBlock<1>& x, size_t word, __m512i codes) {
    high = _mm512_dpbusd_epi32(high, codes, Word(x.high + 4 * word));
  }
  HWY_INLINE __m512i Total() const { return high; }
};

template <>
struct GroupSum<2> {
  __m512i high, low;
  HWY_INLINE void Start(const XBlock<2>& x, int group) {
    high = _mm512_set1_epi32(x.zero_high[group]);
    low = _mm512_set1_epi32(x.zero_low[group]);
  }
  HWY_INLINE void Add(const XBlock<2>& x, size_t word, __m512i codes) {
    high = _mm512_dpbusd_epi32(high, codes, Word(x.high + 4 * word));
    low = _mm512_dpbusd_epi32(low, codes, Word(x.low + 4 * word));
  }
  HWY_INLINE __m512i Total() const { return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low); }
};

// A group's integer sum times the activations' scale.
HWY_INLINE __m512 ScaledSum(const XBlock<1>& x, __m512i total) {
  return _mm512_fmsub_ps(_mm512_castsi512_ps(total), _mm512_set1_ps(x.scale), _mm512_set1_ps(x.magic));
}
HWY_INLINE __m512 ScaledSum(const XBlock<2>& x, __m512i total) {
  return _mm512_mul_ps(_mm512_cvtepi32_ps(total), _mm512_set1_ps(x.scale));
}

template <typename Block, int kBytes>
Ahead Next(const Direct<kBytes>& args, size_t n_steps) {
  if (!args.ahead) return {};
  const SlabRows next = {args.rows.first + kSlabRows * args.rows.stride, args.rows.stride};
  return {next, kSlabRows, args.n_blocks / (Format<Block>::kElems / 32) * sizeof(Block), n_steps};
}

template <int kRows, typename Block, int kBytes>
HWY_NOINLINE void MultiplyDirect32(const Direct<kBytes>& args) {
  static_assert(Format<Block>::kGroups == 1);
  const auto* blocks = reinterpret_cast<const Block*>(args.rows.first);  // packed: any address will do
  const size_t stride = args.rows.stride;
  Ahead ahead = Next<Block>(args, args.n_blocks);
  __m512 acc[kRows];
  for (__m512& a : acc) a = _mm512_setzero_ps();
  for (size_t b = 0; b < args.n_blocks; ++b) {
    ahead.Step();
    GroupSum<kBytes> sums[kRows];
    for (int r = 0; r < kRows; ++r) sums[r].Start(args.x[r][b], 0);
    DecodeCodes(blocks + b, stride, [&](size_t word, __m512i codes) {
      for (int r = 0; r < kRows; ++r) sums[r].Add(args.x[r][b], word, codes);
    });
    const ScalesOf<Block> scales = DecodeScales(blocks + b, stride);
    for (int r = 0; r < kRows; ++r) {
      const XBlock<kBytes>& x = args.x[r][b];
      acc[r] = _mm512_fmadd_ps(ScaledSum(x, sums[r].Total()), scales.scale, acc[r]);
      if constexpr (Format<Block>::kOffset) acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(x.sum[0]), scales.offset, acc[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(args.y[r], acc[r]);
}

template <int kRows, typename Block, int kBytes>
HWY_NOINLINE void MultiplyDirect256(const Direct<kBytes>& args) {
  constexpr int kGroups = Format<Block>::kGroups;  // per part of 32 elements
  constexpr size_t kWords = 8 / kGroups;           // per group
  constexpr size_t kAll = 8 * kGroups;
  const auto* blocks = reinterpret_cast<const Block*>(args.rows.first);  // packed: any address will do
  const size_t stride = args.rows.stride, n_supers = args.n_blocks / 8;
  Ahead ahead = Next<Block>(args, n_supers);
  alignas(64) float scales[kAll * kSlabRows];
  alignas(64) float offsets[kAll * kSlabRows];
  __m512i totals[kAll][kRows];  // groups end in another order than they are added in
  __m512 acc[kRows];
  for (__m512& a : acc) a = _mm512_setzero_ps();
  for (size_t s = 0; s < n_supers; ++s) {
    ahead.Step();
    const XBlock<kBytes>* x[kRows];
    for (int r = 0; r < kRows; ++r) x[r] = args.x[r] + 8 * s;
    DecodeSuperScales(blocks + s, stride, scales, offsets);
    GroupSum<kBytes> sums[8][kRows];
    DecodeSuper(blocks + s, stride, [&](size_t part, size_t word, __m512i codes) {
      const size_t group = word / kWords;
      for (int r = 0; r < kRows; ++r) {
        GroupSum<kBytes>& sum = sums[part][r];
        if (word % kWords == 0) sum.Start(x[r][part], static_cast<int>(group));
        sum.Add(x[r][part], word, codes);
        if (word % kWords == kWords - 1) totals[kGroups * part + group][r] = sum.Total();
      }
    });
    for (size_t g = 0; g < kAll; ++g) {
      const __m512 scale = _mm512_load_ps(scales + kSlabRows * g);
      for (int r = 0; r < kRows; ++r) {
        const XBlock<kBytes>& block = x[r][g / kGroups];
        acc[r] = _mm512_fmadd_ps(ScaledSum(block, totals[g][r]), scale, acc[r]);
        if constexpr (Format<Block>::kOffset) {
          const __m512 offset = _mm512_load_ps(offsets + kSlabRows * g);
          acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(block.sum[g % kGroups]), offset, acc[r]);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(args.y[r], acc[r]);
}

// y[r][0..16) for n_rows activations, 1 to kDirectRowsOf<Block>.
template <typename Block, int kBytes>
void MultiplyDirect(const Direct<kBytes>& args, size_t n_rows) {
  const auto run = [&]<int kRows>() {
    if constexpr (Format<Block>::kElems == 32) {
      MultiplyDirect32<kRows, Block>(args);
    } else {
      MultiplyDirect256<kRows, Block>(args);
    }
  };
  if constexpr (kDirectRowsOf < Block >> 1) {
    if (n_rows == 2) return run.template operator()<2>();
    if (n_rows == 3) return run.template operator()<3>();
    if (n_rows == 4) return run.template operator()<4>();
  }
  run.template operator()<1>();
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_POP_ATTRIBUTES

#endif  // HWY_AVX3_DL
#endif  // per-target include guard
