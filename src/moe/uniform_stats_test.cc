// SPDX-License-Identifier: Apache-2.0
#include "moe/uniform_stats.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace npumoe {
namespace {

ModelConfig Experts(uint32_t n_experts, uint32_t top_k) {
  ModelConfig config;
  config.n_layers = 2;
  config.n_experts = n_experts;
  config.top_k = top_k;
  config.dense_layer = {false, true};
  return config;
}

TEST(UniformStats, HasTheMeanAndSpreadOfIndependentTokens) {
  const std::array<uint32_t, 2> lengths{256, 4096};
  const RoutingStats stats = UniformStats(Experts(64, 8), lengths);
  ASSERT_EQ(stats.layers.size(), 2u);
  EXPECT_TRUE(stats.layers[1].loads.empty());  // dense
  for (size_t i = 0; i < lengths.size(); ++i) {
    ASSERT_EQ(stats.layers[0].loads[i].size(), 64u);
    double n = 0, sum = 0, squares = 0;
    for (const auto& [load, count] : stats.layers[0].loads[i][63]) {
      const double x = load, c = static_cast<double>(count);
      n += c, sum += c * x, squares += c * x * x;
    }
    const double mean = sum / n, deviation = std::sqrt(squares / n - mean * mean);
    // Binomial(tokens, 1/8): the middles of 64 shares lose a little of the tails and whole rows a little more.
    EXPECT_NEAR(mean, lengths[i] / 8.0, 0.1);
    EXPECT_NEAR(deviation, std::sqrt(lengths[i] * 7.0 / 64), 0.03 * std::sqrt(lengths[i] * 7.0 / 64));
  }
}

TEST(UniformStats, EndsOfTheRange) {
  const std::array<uint32_t, 1> one{1};
  const LoadHistogram single = UniformStats(Experts(4, 1), one).layers[0].loads[0][0];
  EXPECT_EQ(single, (LoadHistogram{{0, 48}, {1, 16}}));  // a quarter of the chunks
  const std::array<uint32_t, 1> long_chunk{1u << 24};
  EXPECT_EQ(UniformStats(Experts(3, 3), long_chunk).layers[0].loads[0][2], (LoadHistogram{{1u << 24, 64}}));
  const LoadHistogram wide = UniformStats(Experts(4, 2), long_chunk).layers[0].loads[0][0];
  EXPECT_NEAR(wide.begin()->first, (1 << 23) - 2.42 * 2048, 100);  // 1/128 lies 2.42 deviations below the mean
  EXPECT_TRUE(UniformStats(Experts(0, 0), one).layers.empty());
}

}  // namespace
}  // namespace npumoe
