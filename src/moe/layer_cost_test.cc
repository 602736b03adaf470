// SPDX-License-Identifier: Apache-2.0
#include "moe/layer_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "moe/planner.h"

namespace npumoe {
namespace {

// A spec with round numbers: 1 ms a dispatch, 1 GFLOP/s, weights and I/O free; CPU 0.1 GFLOP/s, weights free.
NpuSpec RoundSpec() {
  NpuSpec spec = **FindSpec("m2-max");
  spec.name = "round";
  spec.dispatch_seconds.value = 1e-3;
  spec.flops_per_second.value = 1e9;
  spec.weight_bytes_per_second.value = 1e18;
  spec.io_bytes_per_second.value = 1e18;
  spec.half_rate_rows.value = 1e-9;  // every row at the full rate, everything fits
  spec.on_chip_bytes.value = 1e18;
  spec.unpack_bytes_per_second.value = 1e18;
  spec.watts_base.value = 2;
  spec.watts_per_tflops.value = spec.watts_per_gbps.value = 0;
  spec.cpu_flops_per_second.value = 1e8;
  spec.cpu_bytes_per_second.value = 1e18;
  spec.cpu_watts.value = 10;
  spec.last_axis_multiple = 10;
  return spec;
}

TEST(ExpectedLayerCost, IsTheMeanOverLoads) {
  // dim 10, expert_dim 10: a row is 600 + 20 flops, on the NPU with silu and product, 600 on the CPU (6 us).
  ModelConfig config;
  config.n_layers = 1;
  config.dim = config.expert_dim = 10;
  config.n_experts = 3;
  config.top_k = 2;
  config.dense_layer = {false};
  LayerRouting routing;
  routing.loads = {{{{10, 1}, {30, 1}}, {{10, 2}}, {{0, 1}, {5, 1}}}};
  LayerPlan layer;
  layer.groups = {{{0, 1}, {20}}};
  layer.cpu_experts = {2};
  const LayerCost cost = ExpectedLayerCost(config, routing, 0, layer, RoundSpec(), WeightFormat::kFp16, false);
  // One dispatch of 2 * 20 rows; expert 0 overflows by 10 rows half the time, expert 2 brings 2.5 rows.
  EXPECT_NEAR(cost.npu_seconds, 1e-3 + 40 * 620 / 1e9, 1e-12);
  EXPECT_NEAR(cost.cpu_seconds, (0.5 * 10 + 2.5) * 6e-6, 1e-12);
  EXPECT_NEAR(cost.expected_overflow_rows, 5, 1e-9);
  EXPECT_NEAR(cost.padded_rows, 0.5 * (10 + 0) + 10, 1e-9);
  EXPECT_NEAR(cost.joules, 2 * cost.npu_seconds + 10 * cost.cpu_seconds, 1e-12);
  // Chosen per run, so few rows are all quicker on the CPU: 10 to 30 rows and 10 rows of 6 us against a dispatch of 1
  // ms.
  const LayerCost chosen = ExpectedLayerCost(config, routing, 0, layer, RoundSpec(), WeightFormat::kFp16, true);
  EXPECT_EQ(chosen.npu_seconds, 0);
  EXPECT_NEAR(chosen.cpu_seconds, (20 + 10 + 2.5) * 6e-6, 1e-12);
}

TEST(LoadScenarios, KeepTheMarginalsAndGiveTheUnseenAPrior) {
  const std::vector<LoadHistogram> histograms{{{4, 3}, {8, 1}}, {{0, 4}}, {}};
  const LoadScenarios scenarios(histograms);
  std::vector<uint32_t> first;
  for (uint32_t s = 0; s < LoadScenarios::kCount; ++s) first.push_back(scenarios.At(s)[0]);
  EXPECT_EQ(std::count(first.begin(), first.end(), 4u), 12);
  EXPECT_EQ(std::count(first.begin(), first.end(), 8u), 4);
  EXPECT_EQ(scenarios.mean[0], 5);
  EXPECT_EQ(scenarios.mean[1], 0.1);  // half a row over four chunks and one more
  EXPECT_EQ(scenarios.mean[2], 0.5);
}

TEST(ScaleLoads, KeepsOrWidensTheRelativeSpread) {
  const LoadHistogram loads{{4, 1}, {12, 1}};  // 8 +- 4
  EXPECT_EQ(ScaleLoads(loads, 4, 1000), (LoadHistogram{{16, 1}, {48, 1}}));
  EXPECT_EQ(ScaleLoads(loads, 0.25, 1000), (LoadHistogram{{0, 1}, {4, 1}}));  // 2 +- 2
  EXPECT_EQ(ScaleLoads(loads, 4, 40), (LoadHistogram{{16, 1}, {40, 1}}));
  EXPECT_EQ(ScaleLoads({}, 4, 40), LoadHistogram{});
}

}  // namespace
}  // namespace npumoe
