// SPDX-License-Identifier: Apache-2.0
// The planner's plans against the paper's, on one chip and one routing; all of it simulated.
#include <gtest/gtest.h>

#include "npumoe/simulate.h"
#include "simulate/test_options.h"

namespace npumoe {
namespace {

const SimulatedPlacement& Of(const SimulateReport& report, std::string_view name) {
  for (const SimulatedPlacement& placement : report.placements) {
    if (placement.placement == name) return placement;
  }
  ADD_FAILURE() << "no placement " << name;
  return report.placements[0];
}

// What the planner promises beyond the paper's plan, on the same chip and routing; prune drops rows, ours none.
TEST(Simulate, OursDropsNothingAndBeatsThePapersPlan) {
  double gaps = 0;
  for (const char* model : {"phi-tiny-moe", "phi-3.5-moe", "qwen3-30b-a3b"}) {
    SimulateOptions options = TestOptions(model);
    options.placements = {"all", "ours"};
    const auto report = Simulate(options, {});
    ASSERT_TRUE(report.ok()) << report.error().message;
    const SimulatedPlacement &paper = Of(*report, "all"), &ours = Of(*report, "ours");
    EXPECT_EQ(ours.dropped.mean, 0) << model;
    EXPECT_GE(paper.ttft_seconds.mean / ours.ttft_seconds.mean, 1.25) << model;
    EXPECT_LE(ours.joules_per_token.mean / paper.joules_per_token.mean, 0.95) << model;

    gaps += ours.gap.mean;

    options.placements = {"ours"};
    options.objective = "edp";
    const auto frugal = Simulate(options, {});
    ASSERT_TRUE(frugal.ok());
    EXPECT_LE(frugal->placements[0].joules_per_token.mean / paper.joules_per_token.mean, 0.8) << model;

    options.objective = "time";
    options.run_drift_factor = 2;
    const auto drifted = Simulate(options, {});
    ASSERT_TRUE(drifted.ok());
    const SimulatedPlacement& moved = drifted->placements[0];
    EXPECT_EQ(moved.dropped.mean, 0) << model;
    EXPECT_LE(moved.ttft_seconds.mean / ours.ttft_seconds.mean, 1.10) << model;
  }
  EXPECT_LE(gaps / 3, 0.05);  // over the lower bound, on average
}

// A CPU that is slow beside its NPU is where overflow hurts most.
TEST(Simulate, DriftCostsLittleWhereTheCpuIsSlow) {
  SimulateOptions options = TestOptions("phi-3.5-moe");
  options.npu = "m2-ultra";
  options.placements = {"ours"};
  const auto calm = Simulate(options, {});
  options.run_drift_factor = 2;
  const auto drifted = Simulate(options, {});
  ASSERT_TRUE(calm.ok() && drifted.ok());
  EXPECT_EQ(drifted->placements[0].dropped.mean, 0);
  EXPECT_LE(drifted->placements[0].ttft_seconds.mean / calm->placements[0].ttft_seconds.mean, 1.10);
}

}  // namespace
}  // namespace npumoe
