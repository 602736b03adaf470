// SPDX-License-Identifier: Apache-2.0
#include "npumoe/simulate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/test_effort.h"
#include "simulate/test_options.h"

namespace npumoe {
namespace {

// Of 32 layers; of two where only memory is looked at.
SimulateOptions WholeModel() {
  SimulateOptions options = TestOptions(AllOrFew("phi-tiny-moe", "tiny-qwen3moe"));
  if (kFewCases) options.prompt_tokens = 512;
  return options;
}

TEST(Simulate, RepeatsItselfAndTellsSeedsApart) {
  SimulateOptions options = WholeModel();
  options.placements = {"ours"};
  const auto once = Simulate(options, {}), again = Simulate(options, {});
  ASSERT_TRUE(once.ok() && again.ok());
  EXPECT_EQ(once->placements[0].ttft_seconds.mean, again->placements[0].ttft_seconds.mean);
  options.seed = 50;
  EXPECT_NE(Simulate(options, {})->placements[0].ttft_seconds.mean, once->placements[0].ttft_seconds.mean);
  EXPECT_GT(once->placements[0].ttft_seconds.deviation, 0);
}

TEST(Simulate, StagesAddUpToTheTime) {
  const auto report = Simulate(WholeModel(), {});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->placements.size(), 8u);
  for (const SimulatedPlacement& placement : report->placements) {
    double sum = 0;
    for (const SimulatedStage& stage : placement.stages) sum += stage.seconds;
    EXPECT_NEAR(sum, placement.ttft_seconds.mean, 1e-9) << placement.placement;
    EXPECT_GE(placement.gap.mean, -1e-9) << placement.placement;
    const bool drops = placement.mode == "prune";
    EXPECT_TRUE(drops || placement.dropped.mean == 0) << placement.placement;
  }
}

TEST(Simulate, RefusesWhatItCannotDoInOneLine) {
  const auto message = [](auto change) {
    SimulateOptions options = TestOptions("phi-tiny-moe");
    change(options);
    const auto report = Simulate(options, {});
    EXPECT_FALSE(report.ok());
    if (report.ok()) return std::string();
    EXPECT_EQ(report.error().message.find('\n'), std::string::npos);
    return report.error().message;
  };
  EXPECT_EQ(message([](SimulateOptions& o) { o.n_seeds = 0; }), "seeds 0: wanted 1 to 10000");
  EXPECT_EQ(message([](SimulateOptions& o) { o.prompt_tokens = 0; }),
            "prompt 0: wanted 1 to 4096 tokens, the context of phi-tiny-moe");
  EXPECT_EQ(message([](SimulateOptions& o) { o.chunk_tokens = 300; }),
            "chunk 300: wanted a multiple of 32, to which m2-max pads rows, of up to 4096 tokens, the context of "
            "phi-tiny-moe");
  EXPECT_NE(message([](SimulateOptions& o) { o.model = "tiny-qwen3moe"; }).find("the context of tiny-qwen3moe"),
            std::string::npos);
  EXPECT_NE(message([](SimulateOptions& o) { o.run_drift_factor = std::nan(""); }).find("drift"), std::string::npos);
  EXPECT_EQ(message([](SimulateOptions& o) { o.moe_batch_tokens = 300; }),
            "MoE batch 300: wanted a multiple of the chunk of 256 tokens");
  EXPECT_NE(message([](SimulateOptions& o) { o.model = "no-such"; }).find("neither a file nor a known shape"),
            std::string::npos);
  EXPECT_NE(message([](SimulateOptions& o) { o.model = "tiny-llama"; }).find("no experts"), std::string::npos);
  EXPECT_NE(message([](SimulateOptions& o) { o.npu = "m9"; }).find("m9"), std::string::npos);
  EXPECT_NE(message([](SimulateOptions& o) { o.placements = {"best"}; }).find("best"), std::string::npos);
  EXPECT_NE(message([](SimulateOptions& o) { o.stats_json = "{", o.stats_path = "s.json"; }).find("s.json"),
            std::string::npos);
}

TEST(Simulate, StopsWhenToldTo) {
  const auto report = Simulate(WholeModel(), [](size_t, size_t) { return false; });
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::kCancelled);
}

}  // namespace
}  // namespace npumoe
