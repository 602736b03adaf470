// SPDX-License-Identifier: Apache-2.0
#include "npumoe/report.h"

#include <gtest/gtest.h>

namespace npumoe {
namespace {

TEST(MakeReport, ProgressCountsEveryPromptOnce) {
  ReportOptions options;
  options.models = {"tiny-qwen3moe"};
  options.simulate.routing = "zipf:0.6,0.3";
  options.simulate.prompt_tokens = options.simulate.moe_batch_tokens = 512;
  options.simulate.n_seeds = 2;
  size_t before = 0, all = 0;
  const auto html = MakeReport(options, [&](size_t done, size_t total) {
    EXPECT_GE(done, before);
    EXPECT_LE(done, total);
    before = done, all = total;
    return true;
  });
  ASSERT_TRUE(html.ok()) << html.error().message;
  EXPECT_GT(all, 0u);
  EXPECT_EQ(before, all);
}

}  // namespace
}  // namespace npumoe
