// SPDX-License-Identifier: Apache-2.0
#include "simulate/routing_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/random_model.h"

namespace npumoe {
namespace {

ModelConfig Small() {
  ModelConfig config = ShapeByName("tiny-qwen3moe").value();
  config.n_layers = 3;
  config.dense_layer.assign(3, false);
  return config;
}

uint64_t Sum(const std::vector<uint32_t>& loads) { return std::accumulate(loads.begin(), loads.end(), uint64_t{0}); }

TEST(ParseZipf, TakesExponentAndDrift) {
  const auto zipf = ParseZipf("zipf:0.6,0.3");
  ASSERT_TRUE(zipf.ok());
  EXPECT_EQ(zipf->exponent, 0.6);
  EXPECT_EQ(zipf->drift, 0.3);
  EXPECT_EQ(ParseZipf("zipf:1")->drift, 0);
}

TEST(ParseZipf, RefusesEverythingElseInOneLine) {
  for (const char* text : {"", "zipf", "zipf:", "zipf:x", "zipf:1,", "zipf:1,2,3", "zipf:-1", "zipf:nan", "zipf:inf",
                           "zipf:9", "zipf:1,9", "zipf:1 ", "uniform"}) {
    const auto zipf = ParseZipf(text);
    ASSERT_FALSE(zipf.ok()) << text;
    EXPECT_NE(zipf.error().message.find("wanted zipf:S"), std::string::npos) << zipf.error().message;
    EXPECT_EQ(zipf.error().message.find('\n'), std::string::npos);
  }
}

TEST(RoutingSource, EveryTokenChoosesTopKDifferentExperts) {
  const ModelConfig config = Small();
  const RoutedPrompt prompt = RoutingSource(config, {2.0, 0.5}, nullptr).Prompt(1, 100, 32);
  ASSERT_EQ(prompt.loads.size(), 4u);
  for (uint32_t step = 0; step < 4; ++step) {
    const uint32_t tokens = step == 3 ? 4 : 32;
    for (uint32_t layer = 0; layer < 3; ++layer) {
      EXPECT_EQ(Sum(prompt.loads[step][layer]), tokens * config.top_k);
      for (const uint32_t load : prompt.loads[step][layer]) EXPECT_LE(load, tokens);  // once a token
    }
  }
  EXPECT_EQ(Sum(prompt.Loads(1, 32, 96)), 64u * config.top_k);
  EXPECT_EQ(Sum(prompt.Loads(1, 0, 100)), 100u * config.top_k);
}

TEST(RoutingSource, SeedsRepeatAndDiffer) {
  const ModelConfig config = Small();
  const RoutingSource source(config, {0.6, 0.3}, nullptr);
  EXPECT_EQ(source.Prompt(5, 64, 32).loads, source.Prompt(5, 64, 32).loads);
  EXPECT_NE(source.Prompt(5, 64, 32).loads, source.Prompt(6, 64, 32).loads);
}

// With one choice a token, shares are the popularities themselves.
TEST(RoutingSource, SharesFollowThePowerLaw) {
  ModelConfig config = Small();
  config.top_k = 1;
  const uint32_t n = 200'000;
  const RoutedPrompt prompt = RoutingSource(config, {1.0, 0.0}, nullptr).Prompt(1, n, n);
  double harmonic = 0;
  for (uint32_t rank = 1; rank <= config.n_experts; ++rank) harmonic += 1.0 / rank;
  for (uint32_t layer = 0; layer < 3; ++layer) {
    std::vector<uint32_t> loads = prompt.loads[0][layer];
    std::sort(loads.rbegin(), loads.rend());
    for (uint32_t rank = 1; rank <= config.n_experts; ++rank) {
      const double want = n / (rank * harmonic);
      EXPECT_NEAR(loads[rank - 1], want, 5 * std::sqrt(want)) << "layer " << layer << " rank " << rank;
    }
  }
  EXPECT_NE(prompt.loads[0][0], prompt.loads[0][1]);  // ranks differ by layer
}

// top_k of all experts: whatever the weights, everybody is chosen by everybody.
TEST(RoutingSource, ExtremeWeightsStillFillTopK) {
  ModelConfig config = Small();
  config.top_k = config.n_experts;
  const RoutedPrompt prompt = RoutingSource(config, {8.0, 8.0}, nullptr).Prompt(3, 50, 50);
  for (const uint32_t load : prompt.loads[0][0]) EXPECT_EQ(load, 50u);
}

// Both ways of choosing have one law: with so few experts the quick draws often run out, with so many they do not.
TEST(RoutingSource, ChoosesBySuccessiveDraws) {
  ModelConfig config = Small();
  config.n_experts = 3;
  config.top_k = 2;
  const uint32_t n = 200'000;
  std::vector<uint32_t> loads = RoutingSource(config, {1.0, 0.0}, nullptr).Prompt(1, n, n).loads[0][0];
  std::sort(loads.rbegin(), loads.rend());
  // Popularities 6/11, 3/11, 2/11; P(chosen) = p + sum over others q * p / (1 - q), by hand.
  const double p[] = {6.0 / 11, 3.0 / 11, 2.0 / 11};
  for (size_t e = 0; e < 3; ++e) {
    double chosen = p[e];
    for (size_t other = 0; other < 3; ++other) chosen += other == e ? 0 : p[other] * p[e] / (1 - p[other]);
    EXPECT_NEAR(loads[e], n * chosen, 5 * std::sqrt(n * chosen)) << e;
  }
  config.n_experts = config.top_k = 512;
  config.n_layers = 1;
  const RoutedPrompt all = RoutingSource(config, {8.0, 8.0}, nullptr).Prompt(1, 64, 64);
  for (const uint32_t load : all.loads[0][0]) EXPECT_EQ(load, 64u);
}

TEST(RoutingSource, DriftMovesPopularityBetweenPrompts) {
  const ModelConfig config = Small();
  const RoutingSource still(config, {0.6, 0.0}, nullptr);
  const auto distance = [&](const RoutingSource& source) {
    const auto a = source.Prompt(1, 20'000, 20'000).loads[0][0], b = source.Prompt(2, 20'000, 20'000).loads[0][0];
    return PopularityDistance(std::vector<uint64_t>(a.begin(), a.end()), std::vector<uint64_t>(b.begin(), b.end()));
  };
  EXPECT_LT(distance(still), 0.02);
  EXPECT_GT(distance(still.WithDrift(0.5)), 0.05);
}

TEST(RoutingSource, CalibrationCountsWhatItsPromptsRouted) {
  const ModelConfig config = Small();
  const RoutingSource source(config, {0.6, 0.3}, nullptr);
  const RoutingStats stats = source.Calibrate(100, 2, 128, {32, 64});
  EXPECT_EQ(stats.n_tokens, 256u);
  for (uint32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(std::accumulate(stats.layers[layer].tokens.begin(), stats.layers[layer].tokens.end(), uint64_t{0}),
              256u * config.top_k);
    for (size_t length = 0; length < 2; ++length) {
      for (uint32_t e = 0; e < config.n_experts; ++e) {
        uint64_t chunks = 0, rows = 0;
        for (const auto& [load, count] : stats.layers[layer].loads[length][e]) chunks += count, rows += load * count;
        EXPECT_EQ(chunks, length == 0 ? 8u : 4u);
        EXPECT_EQ(rows, stats.layers[layer].tokens[e]);
      }
    }
  }
  // And another source that takes its popularity from them routes alike.
  const RoutingSource from_stats(config, {}, &stats);
  const auto loads = from_stats.Prompt(1, 20'000, 20'000).loads[0][0];
  EXPECT_LT(PopularityDistance(std::vector<uint64_t>(loads.begin(), loads.end()), stats.layers[0].tokens), 0.1);
}

}  // namespace
}  // namespace npumoe
