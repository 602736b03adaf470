// SPDX-License-Identifier: Apache-2.0
// The demo model on a simulated NPU against the exact run on the CPU, over held-out text.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "npumoe/eval.h"

namespace npumoe {
namespace {

const std::string kFolder = std::string(NM_SOURCE_DIR) + "/models/";
constexpr uint64_t kTokens = 1000;

std::string ReadText(const std::string& name) {
  std::ifstream file(kFolder + name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Case {
  std::string placement;
  uint32_t chunk = 256, moe_batch = 1024;
  std::string mode = "exact", objective = "time";
};

Result<EvalReport> Compare(const Case& c) {
  EngineOptions options;
  options.n_threads = 2;
  options.context_tokens = 512;
  options.activation_bits = 16;  // as beside an NPU: 8-bit activations are coarser than fp16
  Engine exact = Engine::Open(kFolder + "demo-moe.gguf", options).value();
  options.npu.device = "sim:m2-max";
  options.npu.make_plan = true;
  options.npu.plan.placement = c.placement;
  options.npu.plan.chunk_tokens = c.chunk;
  options.npu.plan.moe_batch_tokens = c.moe_batch;
  options.npu.mode = c.mode;
  options.npu.plan.objective = c.objective;
  auto engine = Engine::Open(kFolder + "demo-moe.gguf", options);
  if (!engine.ok()) return engine.error();
  return Evaluate(*engine, &exact, ReadText("heldout/prose.txt"), {kTokens, 512}, {});
}

class NpuDemo : public testing::TestWithParam<Case> {};

TEST_P(NpuDemo, ExactIsTheCpusUpToFp16) {
  const auto report = Compare(GetParam());
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_LE(report->agreement->median_kl, 1e-4);
  EXPECT_LE(report->agreement->p99_kl, 1e-2);
  EXPECT_GE(report->agreement->top1, 0.99);
  EXPECT_NEAR(report->perplexity / report->agreement->other_perplexity, 1, 1e-3);
  const StageReport e = report->npu.Experts();
  EXPECT_EQ(e.rows_pruned + e.rows_rerouted, 0u);
  EXPECT_TRUE(report->npu.fallbacks.empty()) << report->npu.fallbacks.begin()->first;
  for (const LayerReport& layer : report->npu.layers) {
    const StageReport& one = layer.experts;
    if (one.dispatches + one.rows_cpu == 0) continue;  // a dense layer
    EXPECT_EQ(one.rows_used + one.rows_spilled + one.rows_cpu, kTokens * 2) << "top-2 of every token";
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, NpuDemo,
                         testing::Values(Case{"ours", 128, 512}, Case{"ours", 256, 512, "exact", "energy"},
                                         Case{"base", 64}, Case{"naive", 128}, Case{"tiers", 128},
                                         Case{"tiers+groups", 256}, Case{"all", 128}, Case{"anemll", 96}),
                         [](const auto& param) {
                           std::string name = param.param.placement;
                           if (param.param.objective != "time") name += "_" + param.param.objective;
                           for (char& c : name) c = c == '+' ? '_' : c;
                           return name;
                         });

TEST(NpuDemoModes, PruneCostsAccuracyAndRerouteLess) {
  const auto pruned = Compare({"tiers+groups", 128, 128, "prune"});
  const auto rerouted = Compare({"tiers+groups", 128, 128, "reroute"});
  ASSERT_TRUE(pruned.ok() && rerouted.ok());
  ASSERT_GT(pruned->npu.Experts().rows_pruned, 0u);
  ASSERT_GT(rerouted->npu.Experts().rows_rerouted, 0u);
  const auto say = [](const char* mode, const EvalReport& report) {
    std::printf("%s: perplexity %.3f (exact %.3f), top-1 agreement %.2f %%, %llu rows pruned, %llu rerouted\n", mode,
                report.perplexity, report.agreement->other_perplexity, 100 * report.agreement->top1,
                static_cast<unsigned long long>(report.npu.Experts().rows_pruned),
                static_cast<unsigned long long>(report.npu.Experts().rows_rerouted));
  };
  say("prune", *pruned);
  say("reroute", *rerouted);
  // Dropped rows show, and by more than rounding could.
  EXPECT_GT(pruned->agreement->median_kl, 1e-4);
  EXPECT_GT(pruned->agreement->top1, 0.5);
  EXPECT_GT(rerouted->agreement->top1, 0.5);
}

}  // namespace
}  // namespace npumoe
