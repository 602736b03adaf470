// SPDX-License-Identifier: Apache-2.0
#include "simulate/prefill_model.h"

#include <gtest/gtest.h>

#include "model/random_model.h"
#include "moe/attention_plan.h"
#include "moe/layer_cost.h"
#include "moe/planner.h"

namespace npumoe {
namespace {

// One MoE layer of four experts, two a token, whose loads are given.
struct OneLayer {
  ModelConfig config = ShapeByName("tiny-qwen3moe").value();
  NpuSpec spec = *FindSpec("m2-max").value();
  Plan plan;
  RoutedPrompt prompt;

  explicit OneLayer(std::vector<uint32_t> loads) {
    config.n_layers = 1;
    config.dense_layer.assign(1, false);
    config.n_experts = 4;
    config.top_k = 2;
    config.dim = 512;
    config.expert_dim = 256;
    plan.npu = spec.name;
    plan.chunk_tokens = plan.moe_batch_tokens = 64;
    plan.kv_buckets = {0};
    plan.layers.resize(1);
    uint32_t tokens = 0;
    for (const uint32_t load : loads) tokens += load;
    prompt = {64, tokens / 2, {{std::move(loads)}}};
  }
  SimulatedPrefill Run() const { return SimulatePrefill(config, plan, spec, prompt, 0); }
  double CpuSeconds(double rows) const {
    return CpuExpertCost(rows, 6.0 * config.dim * config.expert_dim,
                         kAssumedFileBytesPerWeight * 3 * config.dim * config.expert_dim, spec)
        .seconds;
  }
  double Dispatch(size_t n_experts, uint32_t capacity) const {
    return DispatchCost(ExpertGroupWork(config, n_experts, capacity, spec, WeightFormat::kFp16), spec).seconds;
  }
};

TEST(SimulatePrefill, CountsRowsOfAStaticGroupByHand) {
  OneLayer one({40, 30, 50, 8});
  one.plan.per_run_capacity = false;
  one.plan.layers[0].groups = {{{0, 1, 2}, {32}}};
  one.plan.layers[0].cpu_experts = {3};
  one.plan.mode = OverflowMode::kPrune;
  SimulatedPrefill ran = one.Run();
  EXPECT_EQ(ran.rows.assigned, 128u);
  EXPECT_EQ(ran.rows.npu, 32u + 30 + 32);
  EXPECT_EQ(ran.rows.padded, 2u);
  EXPECT_EQ(ran.rows.dropped, 8u + 18);
  EXPECT_EQ(ran.rows.spilled, 0u);
  EXPECT_EQ(ran.rows.cpu, 8u);
  EXPECT_EQ(ran.n_dispatches, 1u);

  one.plan.mode = OverflowMode::kExact;
  ran = one.Run();
  EXPECT_EQ(ran.rows.dropped, 0u);
  EXPECT_EQ(ran.rows.spilled, 8u + 18);
}

TEST(SimulatePrefill, StagesAddUpAndTheLongerSideCounts) {
  OneLayer one({40, 30, 50, 8});
  one.plan.layers[0].attention = AttentionPlace::kCpu;
  one.plan.per_run_capacity = false;
  one.plan.layers[0].groups = {{{0, 1, 2}, {64}}};
  one.plan.layers[0].cpu_experts = {3};
  const SimulatedPrefill ran = one.Run();
  EXPECT_DOUBLE_EQ(ran.times.experts, std::max(one.Dispatch(3, 64), one.CpuSeconds(8)));
  EXPECT_DOUBLE_EQ(ran.times.npu_busy, one.Dispatch(3, 64));
  // Packing before and unpacking after the only group hide behind nothing.
  const double rows = 120, f32 = 4, f16 = 2;
  EXPECT_NEAR(ran.times.pack, rows * one.config.dim * (f32 + 3 * f16) / one.spec.copy_bytes_per_second.value, 1e-12);
  EXPECT_DOUBLE_EQ(ran.times.attention, CpuAttentionSeconds(one.config, one.spec, true, 64, 0));
  EXPECT_GE(ran.times.Seconds(), ran.times.bound);
  EXPECT_EQ(ran.times.load, 0);
}

TEST(SimulatePrefill, EverythingOnTheCpuIsItsSum) {
  OneLayer one({40, 30, 50, 8});
  one.plan.layers[0].attention = AttentionPlace::kCpu;
  one.plan.layers[0].cpu_experts = {0, 1, 2, 3};
  const SimulatedPrefill ran = one.Run();
  EXPECT_DOUBLE_EQ(ran.times.experts, one.CpuSeconds(40) + one.CpuSeconds(30) + one.CpuSeconds(50) + one.CpuSeconds(8));
  EXPECT_EQ(ran.times.npu_busy, 0);
  EXPECT_NEAR(ran.times.cpu_busy, ran.times.Seconds(), 1e-12);
  EXPECT_NEAR(ran.times.joules, ran.times.cpu_busy * one.spec.cpu_watts.value, 1e-9);
  EXPECT_NEAR(ran.times.bound, ran.times.Seconds(), 1e-12);
}

// The bound of a menu: nothing that ChooseRun picks is below it, and with many small groups it is close.
TEST(SimulatePrefill, TheSharedExpertIsTheCpusBesideTheGroups) {
  OneLayer one({40, 30, 50, 8});
  one.plan.per_run_capacity = false;
  one.plan.layers[0].groups = {{{0, 1, 2}, {64}}};
  one.plan.layers[0].cpu_experts = {3};
  const double before = one.Run().times.cpu_busy;
  one.config.shared_expert_dim = 4096;
  const double weights = 3.0 * one.config.dim * one.config.shared_expert_dim;
  const double shared = CpuExpertCost(64, 2 * weights, kAssumedFileBytesPerWeight * weights, one.spec).seconds;
  const SimulatedPrefill ran = one.Run();
  EXPECT_NEAR(ran.times.cpu_busy, before + shared, 1e-12);
  EXPECT_DOUBLE_EQ(ran.times.experts, std::max(one.Dispatch(3, 64), shared + one.CpuSeconds(8)));
}

TEST(SimulatePrefill, TheSplitIsNearItsBound) {
  OneLayer one({40, 30, 50, 8});
  one.config.n_experts = 64;
  std::vector<uint32_t> loads;
  for (uint32_t e = 0; e < 64; ++e) loads.push_back(8 + 7 * e % 90);
  uint32_t sum = 0;
  for (const uint32_t load : loads) sum += load;
  one.prompt = {sum / 2, sum / 2, {{loads}}};
  one.plan.chunk_tokens = one.plan.moe_batch_tokens = sum / 2;
  one.plan.layers[0].attention = AttentionPlace::kCpu;
  for (uint32_t e = 0; e < 64; e += 4) one.plan.layers[0].groups.push_back({{e, e + 1, e + 2, e + 3}, {32, 64, 128}});
  const SimulatedPrefill ran = one.Run();
  EXPECT_GE(ran.times.Seconds(), ran.times.bound * (1 - 1e-12));
  EXPECT_EQ(ran.rows.npu + ran.rows.spilled + ran.rows.cpu, ran.rows.assigned);
}

TEST(SimulatePrefill, ChunkMajorPaysForEveryChunk) {
  OneLayer one({40, 30, 50, 8});
  one.plan.per_run_capacity = false;
  one.plan.order = PrefillOrder::kChunkMajor;
  one.plan.layers[0].groups = {{{0, 1, 2, 3}, {64}}};
  one.plan.kv_buckets = {0, 64};
  const SimulatedPrefill first = one.Run();
  one.prompt.loads.push_back(one.prompt.loads[0]);
  one.prompt.n_tokens *= 2;
  const SimulatedPrefill both = one.Run();
  EXPECT_EQ(both.n_dispatches, 2 * first.n_dispatches);
  EXPECT_EQ(both.rows.npu, 2 * first.rows.npu);
  EXPECT_NEAR(both.times.experts, 2 * first.times.experts, 1e-12);
  EXPECT_GT(both.times.attention, 2 * first.times.attention);  // the second chunk sees the first
}

// Two layers, two chunks: every half's experts stand beside the other half's attention, all of it by hand.
TEST(SimulatePrefill, AWavefrontHidesExpertsBesideTheOtherHalfsAttention) {
  OneLayer one({40, 30, 50, 8});
  one.config.n_layers = 2;
  one.config.dense_layer.assign(2, false);
  one.prompt.loads = {{{40, 30, 50, 8}, {20, 20, 44, 44}}, {{10, 10, 100, 8}, {64, 64, 0, 0}}};
  one.prompt.n_tokens = 128;
  one.plan.moe_batch_tokens = 128;
  one.plan.kv_buckets = {0, 64};
  one.plan.per_run_capacity = false;
  one.plan.layers.resize(2);
  for (LayerPlan& layer : one.plan.layers) {
    layer.groups = {{{0, 1, 2}, {128}}};
    layer.cpu_experts = {3};
  }
  const SimulatedPrefill in_turn = one.Run();
  one.plan.order = PrefillOrder::kWavefront;
  const SimulatedPrefill halves = one.Run();

  const auto attention = [&](uint64_t first, uint64_t last) {
    return ExpectedAttentionCost(one.config, one.spec, AttentionPlace::kNpu, true, 64, first, last,
                                 one.plan.kv_buckets, WeightFormat::kFp16)
               .npu_seconds +
           AttentionCopySeconds(one.config, one.spec, static_cast<double>(last - first));
  };
  const double copy = one.spec.copy_bytes_per_second.value, dim = one.config.dim;
  const double router = 2 * 64.0 * 4 * 4 / copy, scatter = ExpertScatterSeconds(one.config, one.spec, 64);
  const auto step = [&](double rows, double cpu_rows, double beside, double copies) {
    const double pack = rows * dim * 6 / copy, unpack = rows * dim * 4 / copy, cpu = one.CpuSeconds(cpu_rows);
    const double group = pack + one.Dispatch(3, 128);
    const double own = std::max(cpu + pack, group) + unpack + scatter + copies;
    return router + std::max(own, group + beside);
  };
  const double first = attention(0, 64), second = attention(64, 128);
  const double copies = AttentionCopySeconds(one.config, one.spec, 64);
  const double wanted = first + step(120, 8, second, copies) + step(120, 8, first, copies) +
                        step(84, 44, second, copies) + step(128, 0, 0, 0);
  EXPECT_NEAR(halves.times.Seconds() - halves.times.output, wanted, 1e-9);
  EXPECT_EQ(halves.rows.assigned, in_turn.rows.assigned);
  EXPECT_EQ(halves.rows.npu + halves.rows.spilled + halves.rows.cpu, halves.rows.assigned);
  EXPECT_EQ(halves.n_dispatches, 4u);
  EXPECT_LE(halves.times.bound, halves.times.Seconds());
}

TEST(SimulatePrefill, AWavefrontOfOneChunkIsABatch) {
  OneLayer one({40, 30, 50, 8});
  one.plan.layers[0].groups = {{{0, 1}, {32, 64}}, {{2}, {64}}};
  one.plan.layers[0].cpu_experts = {3};
  const SimulatedPrefill whole = one.Run();
  one.plan.order = PrefillOrder::kWavefront;
  EXPECT_EQ(one.Run().times.Seconds(), whole.times.Seconds());
}

// Four chunks, as one batch of a plan that takes as many in halves or not.
TEST(SimulatePrefill, AShortBatchOfAWavefrontGoesThroughAsOne) {
  OneLayer one({40, 30, 50, 8});
  one.prompt.loads = {{{40, 30, 50, 8}}, {{20, 20, 44, 44}}, {{10, 10, 100, 8}}, {{64, 64, 0, 0}}};
  one.prompt.n_tokens = 256;
  one.plan.moe_batch_tokens = 256;
  one.plan.kv_buckets = {0, 64, 128, 192};
  one.plan.layers[0].groups = {{{0, 1}, {32, 64, 128}}, {{2}, {64, 128}}};
  one.plan.layers[0].cpu_experts = {3};
  const SimulatedPrefill whole = one.Run();
  one.plan.order = PrefillOrder::kWavefront;
  const SimulatedPrefill halves = one.Run();
  EXPECT_NE(halves.times.Seconds(), whole.times.Seconds());
  one.plan.whole_tokens = 255;
  EXPECT_EQ(one.Run().times.Seconds(), halves.times.Seconds());
  one.plan.whole_tokens = 256;
  const SimulatedPrefill as_one = one.Run();
  EXPECT_EQ(as_one.times.Seconds(), whole.times.Seconds());
  EXPECT_EQ(as_one.times.joules, whole.times.joules);
  EXPECT_EQ(as_one.n_dispatches, whole.n_dispatches);
}

TEST(SimulatePrefill, ZonesOfTheDrawnLayerLieInIt) {
  OneLayer one({40, 30, 50, 8});
  one.plan.layers[0].groups = {{{0, 1}, {32, 64}}, {{2}, {64}}};
  one.plan.layers[0].cpu_experts = {3};
  const SimulatedPrefill ran = one.Run();
  ASSERT_FALSE(ran.zones.empty());
  double end = 0;
  for (const LayerZone& zone : ran.zones) {
    EXPECT_GE(zone.begin, 0);
    EXPECT_GT(zone.end, zone.begin);
    end = std::max(end, zone.end);
  }
  EXPECT_NEAR(end, ran.times.Seconds() - ran.times.output, 1e-12);
}

}  // namespace
}  // namespace npumoe
