// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/checked_math.h"
#include "base/random.h"

namespace npumoe {
namespace {

TEST(CheckedMath, OverflowIsAnError) {
  constexpr size_t kMax = SIZE_MAX;
  EXPECT_EQ(CheckedMul(kMax, 1).value(), kMax);
  EXPECT_EQ(CheckedMul(0, kMax).value(), 0u);
  EXPECT_EQ(CheckedMul(size_t{1} << 32, size_t{1} << 31).value(), size_t{1} << 63);
  EXPECT_EQ(CheckedMul(size_t{1} << 32, size_t{1} << 32).error().message, "size 4294967296 * 4294967296 overflows");
  EXPECT_EQ(CheckedAdd(kMax, 0).value(), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1).error().code, Code::kCorruptFile);
}

TEST(Random, GivesThePublishedSequenceOfSplitMix64) {
  // Steele, Lea, Flood 2014; the values of Vigna's splitmix64.c for seed 1234567.
  Random random(1234567);
  for (const uint64_t expected : {6457827717110365317ull, 3203168211198807973ull, 9817491932198370423ull,
                                  4593380528125082431ull, 16408922859458223821ull}) {
    EXPECT_EQ(random.Next(), expected);
  }
}

TEST(Random, UniformAndGaussianHaveTheirMoments) {
  Random random(1);
  constexpr int kDraws = 100000;
  double sum = 0, sum_gauss = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.Uniform(), g = random.Gaussian();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    sum_gauss += g;
    squares += g * g;
  }
  // Four standard errors: 4 * 0.289 / sqrt(n), 4 / sqrt(n), 4 * sqrt(2 / n).
  EXPECT_NEAR(sum / kDraws, 0.5, 0.0037);
  EXPECT_NEAR(sum_gauss / kDraws, 0.0, 0.0127);
  EXPECT_NEAR(squares / kDraws, 1.0, 0.018);
}

}  // namespace
}  // namespace npumoe
