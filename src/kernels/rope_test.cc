// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "kernels/target_test.h"

namespace npumoe {
namespace {

constexpr double kRopeEps = 0x1.0p-24;  // one rounding of f32, relative

class Rope : public EveryTarget {};
NM_FOR_EVERY_TARGET(Rope);

TEST(RopeTable, FrequenciesFallFromOneByTheta) {
  // theta^(-2i/8) with theta 10^4: 1, 1/10, 1/100, 1/1000.
  const RopeTable table = RopeTable::Make(8, 10000.0, {}, 1.0f, false);
  ASSERT_EQ(table.inv_freq.size(), 4u);
  EXPECT_FLOAT_EQ(table.inv_freq[0], 1.0f);
  EXPECT_FLOAT_EQ(table.inv_freq[1], 0.1f);
  EXPECT_FLOAT_EQ(table.inv_freq[2], 0.01f);
  EXPECT_FLOAT_EQ(table.inv_freq[3], 0.001f);
}

TEST(RopeTable, FactorsDivideFrequencies) {
  const std::vector<float> factors{1, 4};
  const RopeTable table = RopeTable::Make(4, 10000.0, factors, 1.5f, true);
  EXPECT_FLOAT_EQ(table.inv_freq[0], 1.0f);
  EXPECT_FLOAT_EQ(table.inv_freq[1], 0.0025f);
  EXPECT_EQ(table.scale, 1.5f);
  EXPECT_TRUE(table.interleaved);
}

TEST(RopeTable, OfNothingIsEmpty) { EXPECT_TRUE(RopeTable::Make(0, 10000.0, {}, 1.0f, false).inv_freq.empty()); }

TEST(RopeCosSin, IsExactAtPositionsThatF32AnglesLose) {
  RopeTable table{.inv_freq = {1.0f, 0.5f, 0.125f}, .scale = 1.0f, .interleaved = false};
  std::vector<float> cos(3), sin(3);
  RopeCosSin(table, 16777217, cos, sin);  // 2^24 + 1 is no f32
  // Oracle: Taylor series in 60-digit decimals, cos and sin of 16777217, 8388608.5, 2097152.125.
  const double want_cos[] = {0.9943839639136522, -0.998595003971493, 0.6976730326230466},
               want_sin[] = {0.10583256734754364, -0.05299073544662199, 0.716416317200105};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(cos[i], want_cos[i], kRopeEps) << i;
    EXPECT_NEAR(sin[i], want_sin[i], kRopeEps) << i;
  }
  table.scale = 1.25f;
  std::vector<float> scaled(3);
  RopeCosSin(table, 16777217, scaled, sin);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(scaled[i], 1.25 * want_cos[i], 1.25 * kRopeEps) << i;
}

TEST_P(Rope, QuarterTurnsOfHandWorkedPairs) {
  const std::vector<float> cos{0, 1}, sin{1, 0};  // a quarter turn and none
  std::vector<float> halves{1, 2, 3, 4, 9};       // pairs (1, 3), (2, 4); the fifth value is outside
  ApplyRope(halves, cos, sin, false);
  EXPECT_EQ(halves, (std::vector<float>{-3, 2, 1, 4, 9}));
  std::vector<float> pairs{1, 2, 3, 4, 9};  // pairs (1, 2), (3, 4)
  ApplyRope(pairs, cos, sin, true);
  EXPECT_EQ(pairs, (std::vector<float>{-2, 1, 3, 4, 9}));
}

TEST_P(Rope, MatchesDoubleAtEveryTail) {
  Random random(3);
  for (size_t n_pairs = 0; n_pairs <= 67; ++n_pairs) {
    for (const bool interleaved : {false, true}) {
      std::vector<float> x(2 * n_pairs + 20), cos(n_pairs), sin(n_pairs);
      for (float& value : x) value = static_cast<float>(random.Gaussian());
      for (size_t i = 0; i < n_pairs; ++i) {
        const double angle = 6.28 * random.Uniform();
        cos[i] = static_cast<float>(std::cos(angle));
        sin[i] = static_cast<float>(std::sin(angle));
      }
      std::vector<float> y = x;
      ApplyRope(y, cos, sin, interleaved);
      for (size_t i = 0; i < n_pairs; ++i) {
        const size_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + n_pairs;
        const double xa = x[a], xb = x[b], c = cos[i], s = sin[i];
        // Two products and a sum round, each at most by eps of |x_a| + |x_b|.
        const double bound = 2 * kRopeEps * (std::abs(xa) + std::abs(xb));
        ASSERT_NEAR(y[a], xa * c - xb * s, bound) << n_pairs << " " << i;
        ASSERT_NEAR(y[b], xb * c + xa * s, bound) << n_pairs << " " << i;
      }
      for (size_t i = 2 * n_pairs; i < x.size(); ++i) ASSERT_EQ(y[i], x[i]) << n_pairs;
    }
  }
}

}  // namespace
}  // namespace npumoe
