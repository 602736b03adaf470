// SPDX-License-Identifier: Apache-2.0
// Models of ../shared: golden text, and next-token probabilities that llama.cpp gave for random models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "npumoe/engine.h"

namespace npumoe {
namespace {

const std::string kModels = std::string(NM_SOURCE_DIR) + "/../shared/data/models/";

#define NM_NEED_SHARED() \
  if (!std::filesystem::exists(kModels)) GTEST_SKIP() << "no ../shared/data/models beside this checkout"

Engine Open(const std::string& name, EngineOptions options) {
  options.kv_type = KvType::kF32;
  options.n_threads = 2;
  return Engine::Open(kModels + name, options).value();
}

struct Golden {
  std::vector<int32_t> ids;
  std::string text;
};

// Made by tests/oracle/accuracy/make_stories_golden.py.
Golden ReadGolden() {
  std::ifstream file(std::string(NM_SOURCE_DIR) + "/tests/data/stories260K.golden.txt");
  std::string line;
  std::getline(file, line);
  Golden golden;
  std::istringstream ids(line);
  for (int32_t id = 0; ids >> id;) golden.ids.push_back(id);
  std::stringstream rest;
  rest << file.rdbuf();
  golden.text = rest.str();
  return golden;
}

std::vector<double> LogSoftmax(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  std::vector<double> out(logits.begin(), logits.end());
  for (double& value : out) value -= top + std::log(sum);
  return out;
}

struct Told {
  std::vector<int32_t> ids;
  double mean_log_prob = 0;
};

Told TellStory(const std::string& model, size_t n_tokens) {
  Engine engine = Open(model, {});
  Session session = engine.NewSession().value();
  Told told;
  const std::vector<int32_t> bos = engine.Tokenize("", true, false);
  EXPECT_EQ(bos, std::vector<int32_t>{1});
  EXPECT_TRUE(session.Append(bos).ok());
  for (size_t i = 0; i < n_tokens; ++i) {
    const auto logits = session.logits();
    const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    told.mean_log_prob += LogSoftmax(logits)[static_cast<size_t>(best)] / static_cast<double>(n_tokens);
    told.ids.push_back(best);
    EXPECT_TRUE(session.Append({&best, 1}).ok());
  }
  return told;
}

TEST(Stories260K, GreedyTextIsTheGoldenText) {
  NM_NEED_SHARED();
  const Golden golden = ReadGolden();
  ASSERT_EQ(golden.ids.size(), 256u);
  const Told told = TellStory("stories260K-f32.gguf", 256);
  EXPECT_EQ(told.ids, golden.ids);
  const Engine engine = Open("stories260K-f32.gguf", {});
  EXPECT_EQ(engine.Detokenize(told.ids, false), golden.text);
}

TEST(Stories260K, FourIdenticalExpertsTellTheSameStory) {
  NM_NEED_SHARED();
  const Told dense = TellStory("stories260K-f32.gguf", 256);
  const Told upcycled = TellStory("stories260K-upcycled-4e2.gguf", 256);
  EXPECT_EQ(upcycled.ids, dense.ids);
  EXPECT_NEAR(upcycled.mean_log_prob, dense.mean_log_prob, 1e-4);
}

void ExpectStoredProbabilities(const std::string& model, const EngineOptions& options) {
  const std::vector<int32_t> tokens{1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315};
  std::ifstream file(kModels + model + ".probs.json");
  const auto wanted = nlohmann::json::parse(file).get<std::vector<std::vector<double>>>();
  ASSERT_EQ(wanted.size(), tokens.size());
  Engine engine = Open(model, options);
  Session session = engine.NewSession().value();
  const size_t vocab_size = engine.info().vocab_size;
  std::vector<float> logits(tokens.size() * vocab_size);
  ASSERT_TRUE(session.AppendWithLogits(tokens, logits).ok());
  for (size_t row = 0; row < tokens.size(); ++row) {
    const auto got = LogSoftmax(std::span(logits).subspan(row * vocab_size, vocab_size));
    ASSERT_EQ(wanted[row].size(), vocab_size);
    double kl = 0;
    for (size_t i = 0; i < vocab_size; ++i) {
      if (wanted[row][i] > 0) kl += wanted[row][i] * (std::log(wanted[row][i]) - got[i]);
    }
    EXPECT_LE(kl, 1e-4) << model << " position " << row;
    EXPECT_EQ(std::max_element(got.begin(), got.end()) - got.begin(),
              std::max_element(wanted[row].begin(), wanted[row].end()) - wanted[row].begin())
        << model << " position " << row;
  }
}

TEST(RandomModel, Qwen3MoeGivesTheStoredProbabilities) {
  NM_NEED_SHARED();
  ExpectStoredProbabilities("rand-qwen3moe.gguf", {});
}

TEST(RandomModel, PhiMoeGivesTheStoredProbabilitiesUnderTheCompatibilitySwitch) {
  NM_NEED_SHARED();
  EngineOptions options;
  options.phimoe_llama_cpp = true;
  ExpectStoredProbabilities("rand-phimoe.gguf", options);
}

}  // namespace
}  // namespace npumoe
