// SPDX-License-Identifier: Apache-2.0
// Test fixture that runs a TEST_P once for every way in which MatMul may compute on this machine.
#pragma once

#define HWY_WANT_AVX3_DL
#include <string>
#include <vector>

#include "kernels/activations.h"
#include "kernels/blas.h"
#include "kernels/byte_dots.h"
#include "kernels/target_test.h"

namespace npumoe {

// A way of computing: SIMD target, activations, and whether dot and matrix products of bytes beyond the target may be
// used, or a BLAS.
struct Way {
  int64_t target;
  Activations activations;
  bool byte_dots;
  bool byte_matrices = false;
  bool blas = false;
};

inline bool UsesIntegers(const Way& way) {
  if (way.target == HWY_AVX3_DL || way.target == HWY_AVX2) return true;
  return HWY_ARCH_ARM_A64 && way.byte_dots;
}

// Every SIMD target, those with integers with activations of 8 and of 16 bits, and those for which this CPU has more
// dot products with and without them. Where there is a BLAS, the first of these with it, too.
inline std::vector<Way> AllWays() {
  std::vector<Way> all;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    for (const bool byte_dots : {true, false}) {
      if (byte_dots && !HasByteDots() && target != HWY_AVX3_DL) continue;
      if (byte_dots != (target == HWY_AVX3_DL) && target != HWY_AVX2 && !HWY_ARCH_ARM_A64) continue;
      for (const bool byte_matrices : {true, false}) {
        if (byte_matrices && !(byte_dots && HasByteMatrices())) continue;
        const Way way = {target, Activations::k16Bits, byte_dots, byte_matrices};
        all.push_back(way);
        if (UsesIntegers(way)) all.push_back({target, Activations::k8Bits, byte_dots, byte_matrices});
      }
    }
  }
  if (HasBlas()) {
    all.push_back(all.front());
    all.back().blas = true;
  }
  return all;
}

inline std::string NameOf(const testing::TestParamInfo<Way>& info) {
  const Way& way = info.param;
  return std::string(hwy::TargetName(way.target)) + (way.byte_dots && way.target != HWY_AVX3_DL ? "_dots" : "") +
         (way.byte_matrices ? "_matrices" : "") + (way.blas ? "_blas" : "") +
         (way.activations == Activations::k8Bits ? "_8" : "");
}

class EveryWay : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam().target);
    AllowByteDots(GetParam().byte_dots);
    AllowByteMatrices(GetParam().byte_matrices);
    AllowBlas(GetParam().blas);
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    AllowByteDots(true);
    AllowByteMatrices(true);
    AllowBlas(true);
  }
  const Activations activations_ = GetParam().activations;
};

// The largest integer an activation becomes.
inline double LargestInteger(Activations activations) { return activations == Activations::k8Bits ? 127.0 : 32639.0; }

#define NM_FOR_EVERY_WAY(suite) INSTANTIATE_TEST_SUITE_P(Simd, suite, testing::ValuesIn(AllWays()), NameOf)

}  // namespace npumoe
