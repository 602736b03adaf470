// SPDX-License-Identifier: Apache-2.0
// The demo model through the engine: held-out perplexity as its card states, and a key looked up in its context.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "npumoe/engine.h"
#include "npumoe/eval.h"

namespace npumoe {
namespace {

const std::string kFolder = std::string(NM_SOURCE_DIR) + "/models/";

Engine OpenDemo() {
  EngineOptions options;
  options.context_tokens = 512;
  return Engine::Open(kFolder + "demo-moe.gguf", options).value();
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The card's protocol: windows of 512 tokens read without earlier context, positions 1 to 511 of each.
double Perplexity(Engine& engine, const std::string& text) {
  constexpr size_t kWindow = 512;
  const std::vector<int32_t> ids = engine.Tokenize(text, false, false);
  const size_t vocab_size = engine.info().vocab_size;
  std::vector<float> logits(kWindow * vocab_size);
  double nats = 0;
  size_t n = 0;
  for (size_t begin = 0; begin + kWindow <= ids.size(); begin += kWindow) {
    Session session = engine.NewSession().value();
    EXPECT_TRUE(session.AppendWithLogits(std::span(ids).subspan(begin, kWindow), logits).ok());
    for (size_t i = 0; i + 1 < kWindow; ++i, ++n) {
      const float* row = logits.data() + i * vocab_size;
      const float top = *std::max_element(row, row + vocab_size);
      double sum = 0;
      for (size_t v = 0; v < vocab_size; ++v) sum += std::exp(row[v] - top);
      nats += std::log(sum) + top - row[ids[begin + i + 1]];
    }
  }
  return std::exp(nats / static_cast<double>(n));
}

TEST(DemoModel, HeldOutPerplexityIsTheCards) {
  Engine engine = OpenDemo();
  // models/demo-moe.md; it was computed in bf16 arithmetic, which is good for about a percent.
  EXPECT_NEAR(Perplexity(engine, ReadText(kFolder + "heldout/maths.txt")), 10.04, 0.15);
  EXPECT_NEAR(Perplexity(engine, ReadText(kFolder + "heldout/python.txt")), 15.46, 0.25);
  EXPECT_NEAR(Perplexity(engine, ReadText(kFolder + "heldout/prose.txt")), 41.45, 0.7);
}

// 16 bits stand for f32 here, being within 1e-8 nats of it (tests/oracle/accuracy). Activations of 8 bits cost what the
// oracle test measures on small models, 1e-4 nats; ten times that is left to a trained one.
TEST(DemoModel, EightBitActivationsAreCloseToSixteen) {
  EngineOptions options;
  options.context_tokens = 512;
  Engine eight = Engine::Open(kFolder + "demo-moe.gguf", options).value();
  EXPECT_EQ(eight.options().activation_bits, 8u);
  options.activation_bits = 16;
  Engine sixteen = Engine::Open(kFolder + "demo-moe.gguf", options).value();
  const auto report = Evaluate(eight, &sixteen, ReadText(kFolder + "heldout/prose.txt"), {1000, 512}, {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_LE(report->agreement->median_kl, 1e-3);
  EXPECT_GE(report->agreement->top1, 0.97);
  RecordProperty("median_kl", std::to_string(report->agreement->median_kl));
  RecordProperty("mean_kl", std::to_string(report->agreement->mean_kl));
}

// Against a cache of f32, with activations of 16 bits, so that the cache alone rounds: medians of 3e-8 (f16) and 2e-5
// (q8_0) nats were seen, ten times that is allowed.
TEST(DemoModel, ACacheOfEightBitsIsCloseToAnExactOne) {
  EngineOptions options;
  options.context_tokens = 512;
  options.activation_bits = 16;
  options.kv_type = KvType::kF32;
  Engine exact = Engine::Open(kFolder + "demo-moe.gguf", options).value();
  for (const auto& [type, most_kl] : {std::pair(KvType::kF16, 3e-7), {KvType::kQ8_0, 2e-4}}) {
    options.kv_type = type;
    Engine rounded = Engine::Open(kFolder + "demo-moe.gguf", options).value();
    const auto report = Evaluate(rounded, &exact, ReadText(kFolder + "heldout/prose.txt"), {1000, 512}, {});
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_LE(report->agreement->median_kl, most_kl);
    EXPECT_GE(report->agreement->top1, 0.97);
    const std::string name = type == KvType::kF16 ? "f16" : "q8_0";
    RecordProperty(name + "_median_kl", std::to_string(report->agreement->median_kl));
    RecordProperty(name + "_mean_kl", std::to_string(report->agreement->mean_kl));
  }
}

TEST(DemoModel, LooksAKeyUpInItsContext) {
  Engine engine = OpenDemo();
  const std::string keys = "The code of garden is 4821.\nThe code of silver is 9035.\nThe code of window is 1776.\n";
  for (const auto& [key, code] : {std::pair("garden", "4821"), {"silver", "9035"}, {"window", "1776"}}) {
    const std::string prompt = keys + "What is the code of " + key + "?";
    Session session = engine.NewSession().value();
    ASSERT_TRUE(session.Append(engine.Tokenize(prompt, false, false)).ok());
    std::string answer;
    for (int i = 0; i < 8; ++i) {
      const auto logits = session.logits();
      const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      answer += engine.TokenBytes(best, false);
      ASSERT_TRUE(session.Append({&best, 1}).ok());
    }
    EXPECT_NE(answer.find(code), std::string::npos) << prompt << answer;
  }
}

}  // namespace
}  // namespace npumoe
