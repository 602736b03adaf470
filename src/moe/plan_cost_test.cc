// SPDX-License-Identifier: Apache-2.0
#include "moe/plan_cost.h"

#include <gtest/gtest.h>

#include <vector>

#include "moe/layer_cost.h"

namespace npumoe {
namespace {

// `load` seconds for any program, room for `max_programs`.
NpuSpec LoadSpec(double load, size_t max_programs) {
  NpuSpec spec = **FindSpec("m2-max");
  spec.load_seconds.value = load;
  spec.weight_bytes_per_second.value = 1e18;
  spec.max_programs = max_programs;
  return spec;
}

// Layers of one group each that run for 3 seconds.
std::vector<LayerPrograms> Layers(size_t n) { return {n, LayerPrograms{{1000}, false, 0, 3}}; }

TEST(ExpectedLoads, NothingIsLoadedWhenEverythingFits) {
  const LoadCost cost = ExpectedLoads(Layers(4), LoadSpec(1, 4), PrefillOrder::kLayerMajor);
  EXPECT_TRUE(cost.resident);
  EXPECT_EQ(cost.load_seconds, 0);
  EXPECT_EQ(cost.wait_seconds, 0);
}

TEST(ExpectedLoads, ALoadHidesBehindTheLayerBefore) {
  // Room for two of three: every layer loads the next one. The first two are there before the first of six batches.
  const LoadCost hidden = ExpectedLoads(Layers(3), LoadSpec(1, 2), PrefillOrder::kLayerMajor);
  EXPECT_FALSE(hidden.resident);
  EXPECT_NEAR(hidden.load_seconds, 17.0 / 6, 1e-9);
  EXPECT_EQ(hidden.wait_seconds, 0);
  // 4 seconds of loading behind 3 of running; nobody waits for the last of the 17 loads.
  const LoadCost late = ExpectedLoads(Layers(3), LoadSpec(4, 2), PrefillOrder::kLayerMajor);
  EXPECT_NEAR(late.load_seconds, 4 * 17.0 / 6, 1e-9);
  EXPECT_NEAR(late.wait_seconds, 16.0 / 6, 1e-9);
}

TEST(ExpectedLoads, WhatIsNeededLastMakesRoom) {
  // Room for three of four: layers 0 and 2 stay, 1 and 3 take turns; at first 0 to 2 are there.
  const LoadCost cost = ExpectedLoads(Layers(4), LoadSpec(1, 3), PrefillOrder::kLayerMajor);
  EXPECT_NEAR(cost.load_seconds, 11.0 / 6, 1e-9);
}

TEST(ExpectedLoads, AWavefrontLoadsInTheSecondHalfOfALayer) {
  const std::vector<LayerPrograms> layers(3, LayerPrograms{{1000}, true, 1.5, 1.5});
  const auto wait = [&](double seconds, PrefillOrder order) {
    return ExpectedLoads(layers, LoadSpec(seconds, 2), order).wait_seconds;
  };
  EXPECT_NEAR(wait(1, PrefillOrder::kWavefront), 0, 1e-9);
  EXPECT_NEAR(wait(2, PrefillOrder::kLayerMajor), 0, 1e-9);
  EXPECT_GT(wait(2, PrefillOrder::kWavefront), 0.4);
}

TEST(NeighboursFit, CountsTwoLayersAtATime) {
  std::vector<LayerPrograms> layers = Layers(3);
  size_t n = 0;
  for (const LayerPrograms& layer : layers) n = std::max(n, layer.bytes.size());
  EXPECT_TRUE(NeighboursFit(layers, LoadSpec(1, 2 * n)));
  EXPECT_FALSE(NeighboursFit(layers, LoadSpec(1, 2 * n - 1)));
  EXPECT_TRUE(NeighboursFit(std::span(layers).first(1), LoadSpec(1, n)));
}

TEST(ExpectedLoads, NothingHidesWithoutRoomForTwoLayers) {
  // One program at a time: all but the very first are waited for.
  const LoadCost cost = ExpectedLoads(Layers(2), LoadSpec(1, 1), PrefillOrder::kLayerMajor);
  EXPECT_NEAR(cost.load_seconds, 11.0 / 6, 1e-9);
  EXPECT_NEAR(cost.wait_seconds, 11.0 / 6, 1e-9);
  // And a layer that never fits as a whole loads what is left over for each run: 2 of its 3 programs.
  const std::vector<LayerPrograms> wide{{{10, 10, 10}, true, 1, 1}};
  EXPECT_NEAR(ExpectedLoads(wide, LoadSpec(1, 1), PrefillOrder::kLayerMajor).wait_seconds, 2 - 1, 1e-9);  // attention runs meanwhile
}

TEST(ExpectedLoads, ExpertsLoadWhileAttentionRuns) {
  // One layer after the other of 2 programs, room for 3: the group of the next layer comes late.
  const std::vector<LayerPrograms> layers(2, LayerPrograms{{10, 10}, true, 2, 2});
  const LoadCost cost = ExpectedLoads(layers, LoadSpec(1, 3), PrefillOrder::kLayerMajor);
  EXPECT_FALSE(cost.resident);
  EXPECT_EQ(cost.wait_seconds, 0);  // a second of loading, two of attention
  const LoadCost slow = ExpectedLoads(layers, LoadSpec(3, 3), PrefillOrder::kLayerMajor);
  EXPECT_GT(slow.wait_seconds, 0.9);
}

TEST(ExpectedPlanCost, AddsLayersAndLoads) {
  ModelConfig config;
  config.dim = 64;
  config.n_layers = 2;
  config.n_heads = config.n_kv_heads = 2;
  config.head_dim = config.rope_dim = 32;
  config.n_experts = 2;
  config.top_k = 1;
  config.expert_dim = 32;
  config.dense_layer = {false, false};
  Plan plan;
  plan.layers.resize(2);
  for (LayerPlan& layer : plan.layers) layer.groups = {{{0, 1}, {32}}};
  const std::vector<AttentionCost> attention(2, AttentionCost{0.5, 0.25, 2});
  std::vector<LayerCost> experts(2);
  for (LayerCost& cost : experts) cost.npu_seconds = 1, cost.cpu_seconds = 3, cost.joules = 5;
  NpuSpec spec = LoadSpec(0.125, 4);
  const PlanCost fits = ExpectedPlanCost(config, plan, plan.layers, attention, experts, spec);
  const double adding = ExpertScatterSeconds(config, spec, plan.moe_batch_tokens);
  EXPECT_DOUBLE_EQ(fits.seconds, 2 * (0.75 + 3 + adding));
  EXPECT_DOUBLE_EQ(fits.joules, 2 * (2 + 5 + adding * spec.cpu_watts.value));
  EXPECT_EQ(fits.n_programs, 4u);
  const size_t attention_bytes = AttentionWeightBytes(config, true, WeightFormat::kFp16);
  EXPECT_EQ(fits.program_bytes, 2 * (attention_bytes + 2 * 3 * 64 * 32 * 2 + kGraphConstantBytes));
  spec.max_programs = 1;
  const PlanCost tight = ExpectedPlanCost(config, plan, plan.layers, attention, experts, spec);
  EXPECT_GT(tight.loads.load_seconds, 0.25);
  EXPECT_EQ(tight.seconds, fits.seconds + tight.loads.wait_seconds);
  EXPECT_EQ(tight.joules, fits.joules + tight.loads.load_seconds * spec.watts_base.value);
}

}  // namespace
}  // namespace npumoe
