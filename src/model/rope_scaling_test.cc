// SPDX-License-Identifier: Apache-2.0
#include "model/rope_scaling.h"

#include <gtest/gtest.h>

namespace npumoe {
namespace {

void ExpectFactors(const std::vector<float>& actual, const std::vector<float>& wanted) {
  ASSERT_EQ(actual.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(actual[i], wanted[i], 2e-6f * wanted[i]) << "pair " << i;
}

// Recorded from the published formulas, computed by wavelength in Python's double precision.
TEST(Llama3Factors, KeepShortWavelengthsAndStretchLongOnes) {
  ExpectFactors(Llama3Factors(8, 500000, {8, 1, 4, 8192}), {1, 1, 2.69453f, 8});
  ExpectFactors(Llama3Factors(4, 1e6, {8, 1, 4, 8192}), {1, 4.681483f});
}

TEST(YarnFactors, RampBetweenTheTwoTurnCounts) {
  const YarnScaling whole{.factor = 4, .original_context = 4096};
  ExpectFactors(YarnFactors(16, 10000, whole), {1, 1, 1, 1.2307692f, 1.6f, 2.2857143f, 4, 4});
  const YarnScaling fractional{.factor = 4, .original_context = 32768, .truncate = false};
  ExpectFactors(YarnFactors(16, 1e6, fractional), {1, 1, 1, 1.0192383f, 1.64634f, 4, 4, 4});
}

TEST(AttentionFactors, FollowTheLogarithmOfTheStretch) {
  EXPECT_FLOAT_EQ(YarnAttentionFactor(4), 1.1386294f);
  EXPECT_FLOAT_EQ(YarnAttentionFactor(1), 1.0f);
  EXPECT_FLOAT_EQ(YarnAttentionFactor(0.5), 1.0f);
  EXPECT_FLOAT_EQ(LongRopeAttentionFactor(131072, 4096), 1.1902381f);
  EXPECT_FLOAT_EQ(LongRopeAttentionFactor(4096, 4096), 1.0f);
  EXPECT_FLOAT_EQ(LongRopeAttentionFactor(4096, 0), 1.0f);
}

TEST(ApplyLinearScaling, DividesEveryFrequencyAtEveryLength) {
  ModelConfig config;
  config.rope_dim = 4;
  config.rope_long_factors = {2, 3};
  ApplyLinearScaling(config, 4);
  EXPECT_EQ(config.rope_short_factors, (std::vector<float>{4, 4}));
  EXPECT_EQ(config.rope_long_factors, (std::vector<float>{8, 12}));
}

}  // namespace
}  // namespace npumoe
