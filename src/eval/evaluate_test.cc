// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "npumoe/eval.h"

namespace npumoe {
namespace {

const std::string kModel = NM_SOURCE_DIR "/models/demo-moe.gguf";
const std::string kText = "Once upon a time there was a small boat. It lay in the harbour and waited for the wind.";

Engine Open(uint32_t context = 512) {
  EngineOptions options;
  options.n_threads = 2;
  options.context_tokens = context;
  return Engine::Open(kModel, options).value();
}

TEST(Evaluate, PerplexityIsThatOfTheLogits) {
  Engine engine = Open();
  const auto tokens = engine.Tokenize(kText, true, false);
  const size_t vocab_size = engine.info().vocab_size;
  Session session = engine.NewSession().value();
  double nll = 0;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {  // one token at a time
    ASSERT_TRUE(session.Append(std::span(&tokens[i], 1)).ok());
    double sum = 0;
    for (const float logit : session.logits()) sum += std::exp(double{logit});
    nll += std::log(sum) - session.logits()[static_cast<size_t>(tokens[i + 1])];
  }
  const auto report = Evaluate(engine, nullptr, kText, {}, {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->n_tokens, tokens.size() - 1);
  EXPECT_NEAR(report->mean_nll, nll / static_cast<double>(tokens.size() - 1), 1e-5);
  EXPECT_NEAR(report->perplexity, std::exp(report->mean_nll), 1e-9 * report->perplexity);
  EXPECT_GT(report->nll_standard_error, 0);
  EXPECT_FALSE(report->agreement.has_value());
  EXPECT_GT(vocab_size, 0u);
}

TEST(Evaluate, WindowsStartAnewAndPredictAllButTheirFirstToken) {
  Engine engine = Open();
  const size_t n = engine.Tokenize(kText, true, false).size();
  const auto report = Evaluate(engine, nullptr, kText, {0, 5}, {});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->n_tokens, n - (n + 4) / 5);
  EXPECT_EQ(Evaluate(engine, nullptr, kText, {7, 0}, {})->n_tokens, 6u);
}

TEST(Evaluate, ARunAgreesWithItself) {
  Engine engine = Open(), other = Open();
  const auto report = Evaluate(engine, &other, kText, {}, {});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->agreement->top1, 1);
  EXPECT_EQ(report->agreement->same_experts, 1.0);
  EXPECT_EQ(report->agreement->p99_kl, 0);
  EXPECT_DOUBLE_EQ(report->agreement->other_perplexity, report->perplexity);
}

TEST(Evaluate, SaysWhatIsWrong) {
  Engine engine = Open();
  EXPECT_EQ(Evaluate(engine, nullptr, "", {}, {}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(Evaluate(engine, nullptr, kText, {0, 1}, {}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(Evaluate(engine, nullptr, kText, {0, 513}, {}).error().code, Code::kInvalidArgument);
  const auto stop = [](size_t, size_t) { return false; };
  EXPECT_EQ(Evaluate(engine, nullptr, kText, {}, stop).error().code, Code::kCancelled);
}

}  // namespace
}  // namespace npumoe
