// SPDX-License-Identifier: Apache-2.0
// Layers on a simulated NPU against the same layers on the CPU: same experts, same distributions up to fp16.
#include "engine/npu_layers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/test_effort.h"
#include "engine/forward.h"
#include "engine/plan_document.h"
#include "moe/router.h"
#include "npu/cost.h"
#include "npu/simulated_device.h"
#include "npumoe/make_model.h"

namespace npumoe {
namespace {

// Fails the compiles and runs after the first `good` ones.
class FlakyProgram final : public NpuProgram {
 public:
  FlakyProgram(std::unique_ptr<NpuProgram> inner, int& good_runs) : inner_(std::move(inner)), good_runs_(good_runs) {}
  Result<Interval> Run(std::string_view function, std::span<const TensorRef> inputs,
                       std::span<const MutableTensorRef> outputs, Nanos ready) override {
    if (good_runs_-- <= 0) return Error{Code::kDevice, "flaky: run failed on cue"};
    return inner_->Run(function, inputs, outputs, ready);
  }
  size_t ResidentBytes() const override { return inner_->ResidentBytes(); }

 private:
  std::unique_ptr<NpuProgram> inner_;
  int& good_runs_;
};

class FlakyDevice final : public NpuDevice {
 public:
  FlakyDevice(std::unique_ptr<NpuDevice> inner, int good_compiles, int good_runs)
      : inner_(std::move(inner)), good_compiles_(good_compiles), good_runs_(good_runs) {}
  const NpuSpec& Spec() const override { return inner_->Spec(); }
  Result<std::unique_ptr<NpuProgram>> Compile(Graph graph, std::string_view key) override {
    if (good_compiles_-- <= 0) return Error{Code::kDevice, "flaky: compile failed on cue"};
    auto program = inner_->Compile(std::move(graph), key);
    if (!program.ok()) return program.error();
    return std::unique_ptr<NpuProgram>(new FlakyProgram(std::move(program).value(), good_runs_));
  }

 private:
  std::unique_ptr<NpuDevice> inner_;
  int good_compiles_, good_runs_;
};

// Experts in random groups with random capacities; some on the CPU.
Plan RandomPlan(const ModelConfig& config, uint64_t seed) {
  Random random(seed);
  Plan plan;
  plan.npu = "m2-max";
  plan.chunk_tokens = 32u << random.Below(2);
  plan.kv_buckets = {0, 64, 128, 256};
  plan.per_run_capacity = random.Below(2) == 0;
  plan.order = static_cast<PrefillOrder>(random.Below(3));
  plan.moe_batch_tokens = 50 + static_cast<uint32_t>(random.Below(200));  // below and above the prompt
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    LayerPlan layer_plan;
    if (random.Below(4) == 0) layer_plan.attention = AttentionPlace::kCpu;
    layer_plan.expert_scale = random.Below(2) == 0 ? 1.0f : 4.0f;
    for (uint32_t expert = 0; config.IsMoeLayer(layer) && expert < config.n_experts; ++expert) {
      if (random.Below(4) == 0) {
        layer_plan.cpu_experts.push_back(expert);
        continue;
      }
      if (layer_plan.groups.empty() || random.Below(2) == 0) {
        ExpertGroup group;
        for (uint32_t c = 32; c <= 128; c *= 2) {
          if (random.Below(2) == 0) group.capacities.push_back(c);
        }
        if (group.capacities.empty()) group.capacities.push_back(32);
        layer_plan.groups.push_back(group);
      }
      layer_plan.groups.back().experts.push_back(expert);
    }
    plan.layers.push_back(layer_plan);
  }
  return plan;
}

constexpr size_t kTokens = 150;

class NpuLayersTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { OpenShape(GetParam()); }
  void TearDown() override { std::filesystem::remove(path_); }

  void OpenShape(const std::string& shape, uint32_t n_experts = 0, uint32_t top_k = 0) {
    path_ =
        (std::filesystem::temp_directory_path() / ("npumoe_npu_test_" + std::to_string(::getpid()) + ".gguf")).string();
    MakeModelOptions options;
    options.shape = shape;
    options.seed = 5;
    options.n_experts = n_experts;
    options.top_k = top_k;
    ASSERT_TRUE(MakeModel(options, path_).ok());
    model_ = std::make_unique<Model>(Model::Open(path_, {}).value());
    tokens_.clear();
    for (size_t i = 0; i < kTokens; ++i) tokens_.push_back(static_cast<int32_t>((i * 7919 + 13) % config().vocab_size));
  }

  const ModelConfig& config() const { return model_->config(); }

  // Logits after every token, and the report when there is a device.
  std::vector<float> Logits(const Plan* plan, std::unique_ptr<NpuDevice> device, RunReport* report = nullptr,
                            DType cache = DType::kF32) {
    Forward forward(*model_, 2, kTokens);
    const KvCache kv = KvCache::Make(config(), cache, kTokens).value();
    std::vector<float> logits(kTokens * config().vocab_size);
    std::unique_ptr<NpuLayers> npu;
    RunReport own_report;
    if (plan != nullptr) {
      EXPECT_TRUE(CheckPlan(*plan, config()).ok());
      npu = std::make_unique<NpuLayers>(*model_, *plan, std::move(device), forward.compute(), forward.attention(),
                                        forward.ffn());
      npu->BeginPrefill(own_report, nullptr);
    }
    const size_t batch = plan != nullptr ? BatchTokens(*plan, kTokens) : kTokens, n_vocab = config().vocab_size;
    for (size_t begin = 0; begin < kTokens; begin += batch) {
      const size_t n = std::min(batch, kTokens - begin);
      const Status status = forward.Run(std::span(tokens_).subspan(begin, n), begin, kv, false, LogitRows::kMany, {},
                                        std::span(logits).subspan(begin * n_vocab, n * n_vocab), npu.get());
      EXPECT_TRUE(status.ok()) << status.error().message;
    }
    if (npu) npu->EndPrefill(kTokens);
    if (npu && report != nullptr) *report = own_report;
    return logits;
  }

  // Median over positions of KL(cpu || other), in nats.
  double MedianKl(const std::vector<float>& cpu, const std::vector<float>& other) const {
    std::vector<double> kls;
    const size_t n = config().vocab_size;
    for (size_t row = 0; row < kTokens; ++row) {
      const float *p = cpu.data() + row * n, *q = other.data() + row * n;
      double p_sum = 0, q_sum = 0, kl = 0;
      for (size_t i = 0; i < n; ++i) p_sum += std::exp(p[i]), q_sum += std::exp(q[i]);
      for (size_t i = 0; i < n; ++i) {
        const double p_log = p[i] - std::log(p_sum), q_log = q[i] - std::log(q_sum);
        kl += std::exp(p_log) * (p_log - q_log);
      }
      kls.push_back(kl);
    }
    std::nth_element(kls.begin(), kls.begin() + kTokens / 2, kls.end());
    return kls[kTokens / 2];
  }

  std::string path_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> tokens_;
};

std::unique_ptr<NpuDevice> M2Max() { return MakeSimulatedDevice(**FindSpec("m2-max"), 2); }

// docs/numerics.md, "Router logits from an NPU": eight roundings of a normalised value, each up to half a unit in the
// last place (2^-11 of the value), as independent errors at six standard deviations, and the logit's own rounding.
double RouterTolerance(std::span<const float> logits, std::span<const float> normed, const TensorView& router) {
  constexpr double kUnit = 0x1p-11, kRoundings = 8, kSigmas = 6;
  double worst = 0;
  for (size_t e = 0; e < logits.size(); ++e) {
    double squares = 0;
    for (size_t i = 0; i < normed.size(); ++i) {
      const double term = double{router.f32()[e * normed.size() + i]} * normed[i];
      squares += term * term;
    }
    // A rounding error is uniform: its standard deviation is the half unit over the square root of three.
    const double sigma = kUnit * std::sqrt(kRoundings / 3 * squares);
    worst = std::max(worst, kSigmas * sigma + kUnit * std::fabs(double{logits[e]}));
  }
  return worst;
}

// How far the last chosen logit is above the best one left.
double Edge(std::span<const float> logits, size_t top_k) {
  std::vector<float> sorted(logits.begin(), logits.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  return top_k < sorted.size() ? double{sorted[top_k - 1]} - sorted[top_k] : 0;
}

TEST_P(NpuLayersTest, AnyPlanGivesTheCpusDistributionsAndDropsNothing) {
  const auto cpu = Logits(nullptr, nullptr);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const Plan plan = RandomPlan(config(), seed);
    RunReport report;
    const auto npu = Logits(&plan, M2Max(), &report);
    EXPECT_LE(MedianKl(cpu, npu), 1e-4) << "seed " << seed;
    EXPECT_TRUE(report.fallbacks.empty()) << report.fallbacks.begin()->first;
    EXPECT_TRUE(report.simulated);
    uint64_t moe_layers = 0;
    for (uint32_t layer = 0; layer < config().n_layers; ++layer) moe_layers += config().IsMoeLayer(layer) ? 1 : 0;
    const StageReport e = report.Experts();
    EXPECT_EQ(e.rows_used + e.rows_spilled + e.rows_cpu, moe_layers * kTokens * config().top_k);
    EXPECT_EQ(e.rows_pruned + e.rows_rerouted, 0u);
    EXPECT_EQ(report.Attention().rows_used + report.Attention().rows_cpu, kTokens * config().n_layers);
    EXPECT_GT(report.prefill_seconds, 0);
    EXPECT_GE(report.prefill_seconds * 1.0000001, e.npu_seconds + report.Attention().npu_seconds);
  }
}

// Every format runs whole models without a fallback, and the distributions come nearer with every bit: the divergence
// grows with the square of the weights' relative error, which is a fourth and less for two bits more.
TEST_P(NpuLayersTest, WhatTheCpuDoesOfAllExpertsOnTheNpuIsCopyingAndTheSharedExpert) {
  Plan plan;
  plan.npu = "m2-max";
  plan.chunk_tokens = 32;
  plan.kv_buckets = {0, 64, 128};
  plan.order = PrefillOrder::kLayerMajor;
  plan.moe_batch_tokens = kTokens;
  std::vector<uint32_t> all(config().n_experts);
  std::iota(all.begin(), all.end(), 0u);
  plan.per_run_capacity = false;
  plan.layers.assign(config().n_layers, {});
  for (LayerPlan& layer : plan.layers) layer.groups = {{all, {160}}};
  RunReport report;
  Logits(&plan, M2Max(), &report);
  ASSERT_TRUE(report.fallbacks.empty()) << report.fallbacks.begin()->first;
  const NpuSpec& spec = **FindSpec("m2-max");
  const double tokens = kTokens, slots = tokens * config().top_k, dim = config().dim;
  const double routed = 2 * 4 * tokens * config().n_experts, packed = slots * dim * (4 + 2);
  const double unpacked = slots * dim * 2 * 2, combined = 2 * 4 * slots * dim;
  double want = (routed + packed + unpacked + combined) / spec.copy_bytes_per_second.value;
  const LayerWeights& weights = model_->weights().layers[0];
  if (config().shared_expert_dim > 0) {
    const auto bytes = [](const TensorView& w) { return static_cast<double>(ByteSize(w.dtype, w.shape).value()); };
    want += CpuExpertCost(tokens, 6.0 * dim * config().shared_expert_dim,
                          bytes(weights.shared_gate) + bytes(weights.shared_up) + bytes(weights.shared_down), spec)
                .seconds;
  }
  EXPECT_EQ(report.layers[0].experts.rows_used, slots);
  EXPECT_NEAR(report.layers[0].experts.cpu_seconds, want, 1e-3 * want);
}

TEST_P(NpuLayersTest, EveryWeightFormatRuns) {
  const auto cpu = Logits(nullptr, nullptr);
  const auto divergence = [&](WeightFormat format) {
    Plan plan = RandomPlan(config(), 3);
    plan.expert_weights = plan.attention_weights = format;
    RunReport report;
    const auto npu = Logits(&plan, M2Max(), &report);
    EXPECT_TRUE(report.fallbacks.empty()) << report.fallbacks.begin()->first;
    EXPECT_GT(report.Attention().rows_used, 0u);
    return MedianKl(cpu, npu);
  };
  const double fp16 = divergence(WeightFormat::kFp16), int8 = divergence(WeightFormat::kInt8),
               lut8 = divergence(WeightFormat::kLut8), lut6 = divergence(WeightFormat::kLut6),
               lut4 = divergence(WeightFormat::kLut4);
  EXPECT_LT(fp16, lut8);
  EXPECT_LT(4 * lut8, lut6);
  EXPECT_LT(4 * lut6, lut4);
  EXPECT_LT(lut8, 1e-3);
  EXPECT_LT(int8, 1e-3);
}

TEST_P(NpuLayersTest, AFailingDeviceChangesNothingButTheReport) {
  const auto cpu = Logits(nullptr, nullptr);
  const Plan plan = RandomPlan(config(), 2);
  for (const auto& [compiles, runs] : {std::pair(0, 0), {2, 1000}, {1000, 0}, {1000, 3}}) {
    RunReport report;
    const auto flaky = Logits(&plan, std::make_unique<FlakyDevice>(M2Max(), compiles, runs), &report);
    EXPECT_LE(MedianKl(cpu, flaky), 1e-4) << compiles << " compiles, " << runs << " runs";
    EXPECT_FALSE(report.fallbacks.empty());
    const StageReport e = report.Experts();
    uint64_t moe_layers = 0;
    for (uint32_t layer = 0; layer < config().n_layers; ++layer) moe_layers += config().IsMoeLayer(layer) ? 1 : 0;
    EXPECT_EQ(e.rows_used + e.rows_spilled + e.rows_cpu, moe_layers * kTokens * config().top_k);
  }
}

TEST_P(NpuLayersTest, PruneDropsTheLeastSalientRowsAboveTheLargestCapacity) {
  Plan plan = RandomPlan(config(), 3);
  plan.mode = OverflowMode::kPrune;
  for (LayerPlan& layer : plan.layers) {
    for (ExpertGroup& group : layer.groups) group.capacities = {32};
  }
  RunReport report, again;
  const auto pruned = Logits(&plan, M2Max(), &report);
  // What the device does or fails to do changes no row's fate.
  const auto flaky = Logits(&plan, std::make_unique<FlakyDevice>(M2Max(), 3, 2), &again);
  EXPECT_LE(MedianKl(pruned, flaky), 1e-4);
  EXPECT_FALSE(again.fallbacks.empty());
  uint64_t dropped = 0;
  for (uint32_t layer = 0; layer < config().n_layers; ++layer) {
    const StageReport& e = report.layers[layer].experts;
    if (!config().IsMoeLayer(layer)) continue;
    EXPECT_EQ(e.rows_used + e.rows_spilled + e.rows_cpu + e.rows_pruned, kTokens * config().top_k);
    EXPECT_EQ(e.rows_rerouted, 0u);
    dropped += e.rows_pruned;
  }
  EXPECT_GT(dropped, 0u);
  EXPECT_NEAR(static_cast<double>(again.Experts().rows_pruned), static_cast<double>(dropped), 0.02 * double(dropped));
}

TEST_P(NpuLayersTest, RerouteMovesRowsAndDropsNone) {
  Plan plan = RandomPlan(config(), 3);
  plan.mode = OverflowMode::kReroute;
  for (LayerPlan& layer : plan.layers) {
    for (ExpertGroup& group : layer.groups) group.capacities = {32};
  }
  RunReport report;
  Logits(&plan, M2Max(), &report);
  uint64_t moved = 0;
  for (uint32_t layer = 0; layer < config().n_layers; ++layer) {
    const StageReport& e = report.layers[layer].experts;
    if (!config().IsMoeLayer(layer)) continue;
    EXPECT_EQ(e.rows_used + e.rows_spilled + e.rows_cpu, kTokens * config().top_k);
    EXPECT_EQ(e.rows_pruned, 0u);
    moved += e.rows_rerouted;
  }
  EXPECT_GT(moved, 0u);
}

// Layer by layer with the CPU's inputs, so that nothing adds up: every router logit is off by rounding alone, and a
// token chooses other experts only where the logits on the edge were closer than that.
TEST_P(NpuLayersTest, ChosenExpertsAreTheCpusUpToNearTies) {
  Plan plan = RandomPlan(config(), 1);
  for (LayerPlan& layer : plan.layers) layer.attention = AttentionPlace::kNpu;
  Forward forward(*model_, 2, kTokens);
  const KvCache cpu_kv = KvCache::Make(config(), DType::kF32, kTokens).value();
  const KvCache npu_kv = KvCache::Make(config(), DType::kF32, kTokens).value();
  NpuLayers npu(*model_, plan, M2Max(), forward.compute(), forward.attention(), forward.ffn());
  RunReport report;
  npu.BeginPrefill(report, nullptr);
  const size_t dim = config().dim, n_experts = config().n_experts, top_k = config().top_k;
  std::vector<float> x(kTokens * dim), normed(x.size()), npu_x(x.size());
  const auto view = [&](std::vector<float>& values) { return MatView{values.data(), kTokens, dim, dim}; };
  Random random(9);
  for (float& value : x) value = static_cast<float>(random.Gaussian());
  forward.attention().SetPositions(RopeTable::Make(config().rope_dim, config().rope_theta, config().rope_short_factors,
                                                   config().rope_short_scale, config().rope_interleaved),
                                   0, kTokens);
  size_t flips = 0, choices = 0;
  for (uint32_t layer = 0; layer < config().n_layers; ++layer) {
    const LayerWeights& weights = model_->weights().layers[layer];
    npu_x = x;
    npu.Attention({layer, npu_kv.Layer(layer), 0, 0, view(npu_x), view(normed)});
    const MatView npu_logits = forward.ffn().logits(kTokens);
    const std::vector<float> from_npu(npu_logits.data, npu_logits.data + kTokens * n_experts);
    for (size_t row = 0; row < kTokens; ++row) {
      NormRow(config(), {x.data() + row * dim, dim}, weights.attn_norm, weights.attn_norm_bias,
              {normed.data() + row * dim, dim});
    }
    forward.attention().Run(weights, cpu_kv.Layer(layer), 0, view(normed), view(x));
    for (size_t row = 0; row < kTokens; ++row) {
      NormRow(config(), {x.data() + row * dim, dim}, weights.ffn_norm, weights.ffn_norm_bias,
              {normed.data() + row * dim, dim});
    }
    if (config().IsMoeLayer(layer)) {
      forward.ffn().RouterLogits(weights, view(normed));
      for (size_t row = 0; row < kTokens; ++row) {
        const float* const cpu = forward.ffn().logits(kTokens).Row(row);
        const float* const other = from_npu.data() + row * n_experts;
        // docs/numerics.md, "Router logits from an NPU".
        const double tolerance = RouterTolerance({cpu, n_experts}, {normed.data() + row * dim, dim}, weights.router);
        std::vector<uint32_t> cpu_ids(top_k), npu_ids(top_k);
        std::vector<float> scratch(n_experts), unused(top_k);
        for (size_t e = 0; e < n_experts; ++e) EXPECT_NEAR(cpu[e], other[e], tolerance) << layer << ' ' << row;
        Route(config(), {cpu, n_experts}, scratch, cpu_ids, unused);
        Route(config(), {other, n_experts}, scratch, npu_ids, unused);
        std::sort(cpu_ids.begin(), cpu_ids.end());
        std::sort(npu_ids.begin(), npu_ids.end());
        ++choices;
        if (cpu_ids == npu_ids) continue;
        ++flips;
        EXPECT_LE(Edge({cpu, n_experts}, top_k), 2 * tolerance) << "layer " << layer << " token " << row;
      }
    }
    ASSERT_TRUE(forward.ffn().Run(layer, weights, view(normed), view(x)).ok());
  }
  EXPECT_LE(flips, choices / 20);  // counted, and rare
  RecordProperty("near_ties_flipped", static_cast<int>(flips));
}

// All experts on the CPU, all attention on the NPU: in halves they overlap, and nothing else changes.
TEST_P(NpuLayersTest, AWavefrontComputesTheSameInLessTime) {
  Plan plan;
  plan.npu = "m2-max";
  plan.chunk_tokens = 32;
  plan.kv_buckets = {0, 64, 128};
  plan.moe_batch_tokens = kTokens;
  plan.layers.resize(config().n_layers);
  for (uint32_t layer = 0; layer < config().n_layers; ++layer) {
    for (uint32_t e = 0; config().IsMoeLayer(layer) && e < config().n_experts; ++e) {
      plan.layers[layer].cpu_experts.push_back(e);
    }
  }
  NpuSpec spec = **FindSpec("m2-max");
  RunReport in_turn, halves;
  Logits(&plan, MakeSimulatedDevice(spec, 2), &in_turn);
  // As if the experts of a tiny model took as long as its attention.
  const double slower = in_turn.Attention().npu_seconds / in_turn.Experts().cpu_seconds;
  spec.cpu_flops_per_second.value /= slower;
  spec.cpu_bytes_per_second.value /= slower;
  in_turn = {};
  const auto one_after_the_other = Logits(&plan, MakeSimulatedDevice(spec, 2), &in_turn);
  plan.order = PrefillOrder::kWavefront;
  EXPECT_EQ(Logits(&plan, MakeSimulatedDevice(spec, 2), &halves), one_after_the_other);
  EXPECT_EQ(halves.Attention().dispatches, in_turn.Attention().dispatches);
  EXPECT_EQ(halves.Experts().rows_cpu, in_turn.Experts().rows_cpu);
  EXPECT_NEAR(halves.Attention().npu_seconds, in_turn.Attention().npu_seconds, 1e-7);
  EXPECT_EQ(in_turn.overlap_seconds, 0);
  EXPECT_GT(halves.overlap_seconds, 0.2 * in_turn.prefill_seconds);
  EXPECT_LT(halves.prefill_seconds,
            0.95 * in_turn.prefill_seconds);  // few layers: the first and last step hide nothing
}

// One plan, three prompts' worth of batches: as one, in halves, and one of each.
TEST_P(NpuLayersTest, AShortBatchOfAWavefrontGoesThroughAsOne) {
  Plan plan = RandomPlan(config(), 3);
  plan.chunk_tokens = 32;
  plan.moe_batch_tokens = kTokens;
  plan.per_run_capacity = false;  // the same capacities and hence the same bits either way
  for (LayerPlan& layer : plan.layers) {
    layer.attention = AttentionPlace::kNpu;
    for (ExpertGroup& group : layer.groups) group.capacities = {160};  // everything of a batch
  }
  const auto run = [&](PrefillOrder order, uint32_t whole_tokens, RunReport& report) {
    plan.order = order;
    plan.whole_tokens = whole_tokens;
    return Logits(&plan, M2Max(), &report);
  };
  RunReport in_turn, as_one, halves, first_in_halves;
  const auto wanted = run(PrefillOrder::kLayerMajor, 0, in_turn);
  EXPECT_EQ(run(PrefillOrder::kWavefront, kTokens, as_one), wanted);
  EXPECT_EQ(run(PrefillOrder::kWavefront, kTokens - 1, halves), wanted);
  plan.moe_batch_tokens = 96;  // and 54
  EXPECT_EQ(run(PrefillOrder::kWavefront, 54, first_in_halves), wanted);

  EXPECT_EQ(in_turn.order, "layer-major");
  EXPECT_EQ(as_one.order, "layer-major");
  EXPECT_EQ(as_one.Experts().dispatches, in_turn.Experts().dispatches);
  EXPECT_DOUBLE_EQ(as_one.Experts().npu_seconds, in_turn.Experts().npu_seconds);
  EXPECT_EQ(halves.order, "wavefront");
  EXPECT_GT(halves.Experts().dispatches, as_one.Experts().dispatches);
  EXPECT_EQ(first_in_halves.order, "wavefront");
  RunReport both_in_halves;
  EXPECT_EQ(run(PrefillOrder::kWavefront, 0, both_in_halves), wanted);
  EXPECT_GT(both_in_halves.Experts().dispatches, first_in_halves.Experts().dispatches);
}

TEST_P(NpuLayersTest, AWavefrontSurvivesADeviceThatFailsAnywhere) {
  const auto cpu = Logits(nullptr, nullptr);
  Plan plan = RandomPlan(config(), 3);
  plan.order = PrefillOrder::kWavefront;
  plan.chunk_tokens = 32;
  plan.moe_batch_tokens = kTokens;
  plan.mode = OverflowMode::kExact;
  for (LayerPlan& layer : plan.layers) layer.attention = AttentionPlace::kNpu;
  RunReport good;
  Logits(&plan, M2Max(), &good);
  const uint64_t n_runs = good.Attention().dispatches + good.Experts().dispatches;
  for (int good_runs = 0; static_cast<uint64_t>(good_runs) < n_runs; good_runs += 3) {
    SCOPED_TRACE(good_runs);
    RunReport report;
    EXPECT_LE(MedianKl(cpu, Logits(&plan, std::make_unique<FlakyDevice>(M2Max(), 1000, good_runs), &report)), 1e-4);
    EXPECT_FALSE(report.fallbacks.empty());
    const StageReport experts = report.Experts();
    uint64_t moe_layers = 0;
    for (uint32_t layer = 0; layer < config().n_layers; ++layer) moe_layers += config().IsMoeLayer(layer);
    EXPECT_EQ(experts.rows_used + experts.rows_spilled + experts.rows_cpu, moe_layers * kTokens * config().top_k);
  }
}

// Chunks beyond the first read the cache: each of its types must reach the NPU as what it stands for.
TEST_P(NpuLayersTest, EveryTypeOfCacheReachesTheNpu) {
  Plan plan = RandomPlan(config(), 1);
  plan.chunk_tokens = 32;
  for (LayerPlan& layer : plan.layers) layer.attention = AttentionPlace::kNpu;
  for (const DType cache : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    SCOPED_TRACE(Info(cache).name);
    RunReport report;
    const auto cpu = Logits(nullptr, nullptr, nullptr, cache);
    const auto npu = Logits(&plan, M2Max(), &report, cache);
    EXPECT_LE(MedianKl(cpu, npu), 1e-4);
    EXPECT_GT(report.Attention().dispatches, config().n_layers);  // of more than one chunk
    EXPECT_TRUE(report.fallbacks.empty()) << report.fallbacks.begin()->first;
  }
}

TEST_P(NpuLayersTest, ProgramsTakeTurnsWhereNotAllFit) {
  const auto cpu = Logits(nullptr, nullptr);
  Plan plan = RandomPlan(config(), 1);
  plan.order = PrefillOrder::kChunkMajor;  // several rounds through the layers
  plan.chunk_tokens = 32;
  size_t largest = 0;
  for (LayerPlan& layer : plan.layers) {
    layer.attention = AttentionPlace::kNpu;
    largest = std::max(largest, 1 + layer.groups.size());
  }
  NpuSpec spec = **FindSpec("m2-max");
  RunReport all_fit, two_layers_fit, one_layer_fits;
  Logits(&plan, MakeSimulatedDevice(spec, 2), &all_fit);
  spec.max_programs = 2 * largest;
  EXPECT_LE(MedianKl(cpu, Logits(&plan, MakeSimulatedDevice(spec, 2), &two_layers_fit)), 1e-4);
  spec.max_programs = largest;
  EXPECT_LE(MedianKl(cpu, Logits(&plan, MakeSimulatedDevice(spec, 2), &one_layer_fits)), 1e-4);
  const auto loads = [](const RunReport& report) { return report.Attention().loads + report.Experts().loads; };
  EXPECT_EQ(loads(all_fit), 0u);
  EXPECT_EQ(all_fit.load_wait_seconds, 0);
  EXPECT_GE(loads(one_layer_fits), loads(two_layers_fit));
  EXPECT_GT(one_layer_fits.load_wait_seconds, 0);
  EXPECT_GT(one_layer_fits.prefill_seconds, all_fit.prefill_seconds);
  for (const RunReport* report : {&all_fit, &two_layers_fit, &one_layer_fits}) {
    EXPECT_TRUE(report->fallbacks.empty()) << report->fallbacks.begin()->first;
  }
}

TEST_P(NpuLayersTest, AProgramThatDoesNotFitRunsOnTheCpuAndSaysWhy) {
  const auto cpu = Logits(nullptr, nullptr);
  const Plan plan = RandomPlan(config(), 2);
  NpuSpec spec = **FindSpec("m2-max");
  spec.max_program_weight_bytes = 4096;  // no expert, no attention
  RunReport report;
  EXPECT_LE(MedianKl(cpu, Logits(&plan, MakeSimulatedDevice(spec, 2), &report)), 1e-4);
  EXPECT_EQ(report.Attention().dispatches + report.Experts().dispatches, 0u);
  ASSERT_FALSE(report.fallbacks.empty());
  for (const auto& [reason, times] : report.fallbacks) {
    EXPECT_NE(reason.find("max_program_weight_bytes"), std::string::npos) << reason;
    EXPECT_EQ(times, 1u);
  }
}

class OddShapesTest : public NpuLayersTest {
 protected:
  void SetUp() override {}
};

TEST_P(OddShapesTest, PlannedAndRunLikeAnyOther) {
  const NpuSpec& spec = **FindSpec("m2-max");
  constexpr std::pair<uint32_t, uint32_t> kShapes[] = {{7, 7}, {77, 3}, {2, 1}, {2, 2}, {3, 2}, {512, 10}};
  for (const auto& [n_experts, top_k] : std::span(kShapes).first(AllOrFew(6u, 2u))) {
    SCOPED_TRACE(testing::Message() << n_experts << " experts, top-" << top_k);
    OpenShape(GetParam(), n_experts, top_k);
    const auto cpu = Logits(nullptr, nullptr);
    for (const Placement placement : {Placement::kOurs, Placement::kBase, Placement::kTiersGroups}) {
      // A program per expert: more than any NPU loads at once.
      if (placement == Placement::kBase && n_experts > 100) continue;
      PlanRequest request;
      request.placement = placement;
      request.chunk_tokens = 64;
      request.prompt_tokens = kTokens;
      const auto made = MakePlanFor(*model_, nullptr, spec, request);
      ASSERT_TRUE(made.ok()) << made.error().message;
      RunReport report;
      const auto npu = Logits(&made->plan, M2Max(), &report);
      EXPECT_LE(MedianKl(cpu, npu), 1e-4);
      EXPECT_TRUE(report.fallbacks.empty()) << report.fallbacks.begin()->first;
      for (uint32_t layer = 0; layer < config().n_layers; ++layer) {
        if (!config().IsMoeLayer(layer)) continue;
        const StageReport& e = report.layers[layer].experts;
        EXPECT_EQ(e.rows_used + e.rows_spilled + e.rows_cpu, kTokens * top_k);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, OddShapesTest, testing::Values("tiny-qwen3moe", "tiny-qwen2moe"),
                         [](const auto& param) { return param.param.substr(5); });

// Norms of queries and keys, layer norms with biases, a shared expert; then what has none of them.
const std::string kFamilies[] = {"tiny-qwen3moe", "tiny-phimoe", "tiny-qwen2moe", "tiny-mixtral", "tiny-olmoe"};

INSTANTIATE_TEST_SUITE_P(Families, NpuLayersTest, testing::ValuesIn(kFamilies, kFamilies + AllOrFew(5, 3)),
                         [](const auto& param) { return param.param.substr(5); });

}  // namespace
}  // namespace npumoe
