// SPDX-License-Identifier: Apache-2.0
// Activations of 8 bits.
#include "base/check.h"
#include "kernels/byte_dots.h"
#include "kernels/narrow_strip.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/narrow_strip_8.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/integer_narrow-inl.h"

// Newer Highways have several targets on Arm; what is told apart here is not among them.
#if HWY_TARGET == HWY_AVX2 || (HWY_ARCH_ARM_A64 && HWY_TARGET == HWY_STATIC_TARGET)

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

#if HWY_ARCH_X86
template <typename Block>
void RunStripOf(const StripArgs& args, bool prepared) {
  if (HasByteDots()) return MultiplyStrip<VnniDot, Block>(args, prepared);
  if constexpr (Format<Block>::kBits < 8) {
    return MultiplyStrip<MaddBytesDot<Format<Block>::kBits>, Block>(args, prepared);
  } else {
    return MultiplyStrip<MaddPairsDot<1>, Block>(args, prepared);
  }
}
using LargestDot = MaddPairsDot<1>;
#else
template <typename Block>
void RunStripOf(const StripArgs& args, bool prepared) {
  if (InPairs(args)) return MultiplyStrip<ArmPairs<1>, Block>(args, prepared);
  MultiplyStrip<ArmDot<1>, Block>(args, prepared);
}
using LargestDot = ArmDot<1>;
#endif

}  // namespace HWY_NAMESPACE

size_t NarrowScratchFloats8(size_t max_inner) {
  return HWY_NAMESPACE::ScratchFloatsOf<HWY_NAMESPACE::LargestDot>(max_inner, Activations::k8Bits);
}

void RunNarrowStrip8(const StripArgs& args, bool prepared) {
  const bool known =
      WithIntegerFormat(args.w.dtype, [&]<typename Block>() { HWY_NAMESPACE::RunStripOf<Block>(args, prepared); });
  NM_CHECK(known);
}

}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX2 or Arm
