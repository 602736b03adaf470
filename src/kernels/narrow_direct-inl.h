// SPDX-License-Identifier: Apache-2.0
// A few activations times kLanes weight rows straight from their blocks, as integer_direct-inl.h does with AVX-512: for
// so few activations that reading the weights is the work.

// Per-target include guard.
#if defined(NPUMOE_KERNELS_NARROW_DIRECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NPUMOE_KERNELS_NARROW_DIRECT_INL_H_
#undef NPUMOE_KERNELS_NARROW_DIRECT_INL_H_
#else
#define NPUMOE_KERNELS_NARROW_DIRECT_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "kernels/narrow_decode-inl.h"
#include "kernels/narrow_dot-inl.h"
#include "kernels/weight_rows.h"

#if HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

// Most activations of one call.
inline constexpr size_t kDirectRows = 2;

template <typename Dot>
struct Direct {
  const typename Dot::X* x[kDirectRows];
  SlabRows rows;    // the first kLanes of them
  bool ahead;       // as many rows behind them are wanted next
  size_t n_blocks;  // of 32 elements
  float* y[kDirectRows];
};

template <typename Dot, typename Block, int kRows>
HWY_NOINLINE void MultiplyDirect32(const Direct<Dot>& args, Ahead ahead) {
  static_assert(Format<Block>::kGroups == 1);
  const F32 d;
  const auto* blocks = reinterpret_cast<const Block*>(args.rows.first);  // packed: any address will do
  const size_t stride = args.rows.stride;
  VF32 acc[kRows];
  for (size_t r = 0; r < kRows; ++r) acc[r] = hn::Zero(d);
  for (size_t b = 0; b < args.n_blocks; ++b) {
    ahead.Step();
    typename Dot::Sum sums[kRows];
    for (size_t r = 0; r < kRows; ++r) sums[r].Start(args.x[r][b], 0);
    DecodeCodes<Dot::kSigned>(blocks + b, stride, [&](auto word, VBytes bytes) NPUMOE_NARROW_LAMBDA {
      const auto codes = Dot::Prepare(bytes);
      for (size_t r = 0; r < kRows; ++r) {
        sums[r].template Add<word>(codes, Dot::template WordOf<word>(args.x[r][b]));
      }
    });
    const ScaleAndOffset of = DecodeScales(blocks + b, stride);
    for (size_t r = 0; r < kRows; ++r) {
      const auto& x = args.x[r][b];
      acc[r] = hn::MulAdd(ScaledSum(x, sums[r].Total(x, 0)), of.scale, acc[r]);
      if constexpr (Format<Block>::kOffset) acc[r] = hn::MulAdd(hn::Set(d, x.sum[0]), of.offset, acc[r]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) hn::StoreU(acc[r], d, args.y[r]);
}

template <typename Dot, typename Block, int kRows>
HWY_NOINLINE void MultiplyDirect256(const Direct<Dot>& args, Ahead ahead) {
  constexpr size_t kGroups = Format<Block>::kGroups;  // per part of 32 elements
  constexpr size_t kWords = 8 / kGroups;              // per group
  constexpr size_t kAll = 8 * kGroups;
  const F32 d;
  const auto* blocks = reinterpret_cast<const Block*>(args.rows.first);  // packed: any address will do
  const size_t stride = args.rows.stride;
  alignas(32) float scales[kAll * kLanes];
  alignas(32) float offsets[kAll * kLanes];
  VF32 values[kAll][kRows];  // groups end in another order than they are added in
  VF32 acc[kRows];
  for (size_t r = 0; r < kRows; ++r) acc[r] = hn::Zero(d);
  for (size_t s = 0; s < args.n_blocks / 8; ++s) {
    ahead.Step();
    DecodeSuperScales(blocks + s, stride, scales, offsets, kLanes);
    typename Dot::Sum sums[8][kRows];
    DecodeSuper(blocks + s, stride, [&](auto part, auto word, VBytes bytes) NPUMOE_NARROW_LAMBDA {
      constexpr size_t kGroup = word / kWords, kAt = word % kWords;
      const auto codes = Dot::Prepare(bytes);
      for (size_t r = 0; r < kRows; ++r) {
        const auto& x = args.x[r][8 * s + part];
        auto& sum = sums[part][r];
        if constexpr (kAt == 0) sum.Start(x, kGroup);
        sum.template Add<kAt>(codes, Dot::template WordOf<word>(x));
        if constexpr (kAt == kWords - 1) values[kGroups * part + kGroup][r] = ScaledSum(x, sum.Total(x, kGroup));
      }
    });
    for (size_t g = 0; g < kAll; ++g) {
      const VF32 scale = hn::Load(d, scales + kLanes * g);
      for (size_t r = 0; r < kRows; ++r) {
        acc[r] = hn::MulAdd(values[g][r], scale, acc[r]);
        if constexpr (Format<Block>::kOffset) {
          const VF32 sum = hn::Set(d, args.x[r][8 * s + g / kGroups].sum[g % kGroups]);
          acc[r] = hn::MulAdd(sum, hn::Load(d, offsets + kLanes * g), acc[r]);
        }
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) hn::StoreU(acc[r], d, args.y[r]);
}

// y[r][0..kLanes) for n_rows activations, 1 to kDirectRows.
template <typename Dot, typename Block>
void MultiplyDirect(const Direct<Dot>& args, size_t n_rows) {
  const size_t n_steps = args.n_blocks / (Format<Block>::kElems / 32);
  const SlabRows next = {args.rows.first + kLanes * args.rows.stride, args.rows.stride};
  const Ahead ahead = args.ahead ? Ahead(next, kLanes, n_steps * sizeof(Block), n_steps) : Ahead();
  ForEach<kDirectRows>([&](auto before) NPUMOE_NARROW_LAMBDA {
    if (n_rows != before + 1) return;
    if constexpr (Format<Block>::kElems == 32) {
      MultiplyDirect32<Dot, Block, before + 1>(args, ahead);
    } else {
      MultiplyDirect256<Dot, Block, before + 1>(args, ahead);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX2 or Arm
#endif  // per-target include guard
