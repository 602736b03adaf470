// SPDX-License-Identifier: Apache-2.0
// Activations of 16 bits.
#include "base/check.h"
#include "kernels/narrow_strip.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/narrow_strip_16.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/integer_narrow-inl.h"

// Newer Highways have several targets on Arm; what is told apart here is not among them.
#if HWY_TARGET == HWY_AVX2 || (HWY_ARCH_ARM_A64 && HWY_TARGET == HWY_STATIC_TARGET)

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

#if HWY_ARCH_X86
using WideDot = MaddPairsDot<2>;
#else
using WideDot = ArmDot<2>;
#endif

template <typename Block>
void RunStripOf(const StripArgs& args, bool prepared) {
#if HWY_ARCH_ARM_A64
  if (InPairs(args)) return MultiplyStrip<ArmPairs<2>, Block>(args, prepared);
#endif
  MultiplyStrip<WideDot, Block>(args, prepared);
}

}  // namespace HWY_NAMESPACE

size_t NarrowScratchFloats16(size_t max_inner) {
  return HWY_NAMESPACE::ScratchFloatsOf<HWY_NAMESPACE::WideDot>(max_inner, Activations::k16Bits);
}

void RunNarrowStrip16(const StripArgs& args, bool prepared) {
  const bool known =
      WithIntegerFormat(args.w.dtype, [&]<typename Block>() { HWY_NAMESPACE::RunStripOf<Block>(args, prepared); });
  NM_CHECK(known);
}

}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX2 or Arm
