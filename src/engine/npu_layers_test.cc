// SPDX-License-Identifier: Apache-2.0
// Layers on a simulated NPU against the same layers on the CPU: same experts, same distributions up to fp16.
#include "engine/npu_layers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/forward.h"
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

  void OpenShape(const std::string& shape) {
    path_ =
        (std::filesystem::temp_directory_path() / ("npumoe_npu_test_" + std::to_string(::getpid()) + ".gguf")).string();
    MakeModelOptions options;
    options.shape = shape;
    options.seed = 5;
    ASSERT_TRUE(MakeModel(options, path_).ok());
    model_ = std::make_unique<Model>(Model::Open(path_, {}).value());
    for (size_t i = 0; i < kTokens; ++i) tokens_.push_back(static_cast<int32_t>((i * 7919 + 13) % config().vocab_size));
  }

  const ModelConfig& config() const { return model_->config(); }

  // Logits after every token, and the report when there is a device.
  std::vector<float> Logits(const Plan* plan, std::unique_ptr<NpuDevice> device, RunReport* report = nullptr) {
    Forward forward(*model_, 2, kTokens);
    const KvCache kv = KvCache::Make(config(), DType::kF32, kTokens).value();
    std::vector<float> logits(kTokens * config().vocab_size);
    std::unique_ptr<NpuLayers> npu;
    RunReport own_report;
    if (plan != nullptr) {
      EXPECT_TRUE(CheckPlan(*plan, config()).ok());
      npu = std::make_unique<NpuLayers>(*model_, *plan, std::move(device), forward.compute(), forward.attention(),
                                        forward.ffn());
      npu->BeginPrefill(own_report, nullptr);
    }
    const Status status = forward.Run(tokens_, 0, kv, false, LogitRows::kAll, {}, logits, npu.get());
    EXPECT_TRUE(status.ok()) << status.error().message;
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

INSTANTIATE_TEST_SUITE_P(Families, NpuLayersTest,
                         testing::Values("tiny-qwen3moe", "tiny-phimoe", "tiny-mixtral", "tiny-qwen2moe", "tiny-olmoe"),
                         [](const auto& param) { return param.param.substr(5); });

}  // namespace
}  // namespace npumoe
