// SPDX-License-Identifier: Apache-2.0
// The golden story on every simulated NPU under every placement.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/test_effort.h"
#include "npumoe/engine.h"

namespace npumoe {
namespace {

constexpr size_t kPromptTokens = 160;  // of the story's 256, so that chunks, buckets and a remainder occur

// Made by tests/oracle/accuracy/make_stories_golden.py.
std::vector<int32_t> GoldenIds() {
  std::ifstream file(std::string(NM_SOURCE_DIR) + "/tests/data/stories260K.golden.txt");
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  std::vector<int32_t> ids;
  for (int32_t id = 0; words >> id;) ids.push_back(id);
  return ids;
}

size_t Best(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class GoldenOnNpu : public testing::TestWithParam<std::string> {};

TEST_P(GoldenOnNpu, EveryPlacementTellsTheSameStory) {
  const std::string models = std::string(NM_SOURCE_DIR) + "/../shared/data/models/";
  if (!std::filesystem::exists(models)) GTEST_SKIP() << "no ../shared/data/models beside this checkout";
  const std::vector<int32_t> golden = GoldenIds();
  ASSERT_EQ(golden.size(), 256u);
  for (const std::string_view model : {"stories260K-upcycled-4e2.gguf", "stories260K-f32.gguf"}) {
    const bool moe = model == "stories260K-upcycled-4e2.gguf";
    for (const std::string_view placement : Placements()) {
      if (!moe && placement != "ours") continue;  // without experts the placements are one or the CPU
      SCOPED_TRACE(testing::Message() << model << ", " << placement);
      EngineOptions options;
      options.n_threads = 2;
      options.npu.device = "sim:" + GetParam();
      options.npu.make_plan = true;
      options.npu.plan.placement = placement;
      options.npu.plan.objective = "energy";  // in time the CPU alone would win with so small a model
      options.npu.plan.chunk_tokens = 64;
      options.npu.plan.moe_batch_tokens = 128;
      auto engine = Engine::Open(models + std::string(model), options);
      ASSERT_TRUE(engine.ok()) << engine.error().message;
      Session session = engine->NewSession().value();
      std::vector<int32_t> prompt{1};  // BOS
      prompt.insert(prompt.end(), golden.begin(), golden.begin() + kPromptTokens);
      // What the NPU read predicts the story at every position ...
      const size_t vocab_size = engine->info().vocab_size;
      std::vector<float> logits(prompt.size() * vocab_size);
      ASSERT_TRUE(session.AppendWithLogits(prompt, logits).ok());
      for (size_t i = 0; i < prompt.size(); ++i) {
        ASSERT_EQ(Best(std::span(logits).subspan(i * vocab_size, vocab_size)), static_cast<size_t>(golden[i])) << i;
      }
      // ... and decode goes on from its keys and values.
      for (size_t i = kPromptTokens; i + 1 < golden.size(); ++i) {
        ASSERT_TRUE(session.Append(std::span(&golden[i], 1)).ok());
        ASSERT_EQ(Best(session.logits()), static_cast<size_t>(golden[i + 1])) << i;
      }
      const RunReport& report = session.report();
      EXPECT_EQ(report.npu, GetParam());
      EXPECT_TRUE(report.simulated);
      EXPECT_TRUE(report.fallbacks.empty()) << report.fallbacks.begin()->first;
      const bool attends = placement != "cpu" && placement != "naive";
      if (placement != "ours") {  // which goes where it is cheaper
        EXPECT_EQ(report.Attention().dispatches > 0, attends);
      }
      if (placement == "naive" || placement == "base") {
        EXPECT_EQ(report.Experts().dispatches > 0, moe);
      }
      if (placement == "cpu" || placement == "anemll") {
        EXPECT_EQ(report.Experts().dispatches, 0u);
      }
    }
  }
}

// The device that most is known of, and the one with the tightest limits; then the others.
const std::string kSpecs[] = {"m2-max", "m1", "m2-ultra", "m3-max", "m4", "m4-max", "m5", "m5-pro"};

INSTANTIATE_TEST_SUITE_P(Specs, GoldenOnNpu, testing::ValuesIn(kSpecs, kSpecs + AllOrFew(8, 2)), [](const auto& param) {
  std::string name = param.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace npumoe
