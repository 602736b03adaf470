// SPDX-License-Identifier: Apache-2.0
// Test fixture that runs a TEST_P once for every SIMD target this machine has and the kernels were compiled for.
#pragma once

#include "kernels/simd_targets.h"
// After simd_targets.h.
#include <gtest/gtest.h>

#include <string>

#include "hwy/highway.h"

namespace npumoe {

class EveryTarget : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

inline std::string TargetOf(const testing::TestParamInfo<int64_t>& info) { return hwy::TargetName(info.param); }

// class MyTest : public EveryTarget {}; NM_FOR_EVERY_TARGET(MyTest); TEST_P(MyTest, DoesThis) { ... }
#define NM_FOR_EVERY_TARGET(suite) \
  INSTANTIATE_TEST_SUITE_P(Simd, suite, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), TargetOf)

}  // namespace npumoe
