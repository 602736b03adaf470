// SPDX-License-Identifier: Apache-2.0
#include "eval/choice_score.h"

#include <algorithm>

#include "base/check.h"
#include "eval/log_softmax.h"
#include "eval/margins.h"

namespace npumoe {
namespace {

constexpr size_t kMaxLogitBytes = size_t{1} << 30;  // of one ending: 1,700 tokens of the largest vocabulary in use

size_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin()).first -
                             a.begin());
}

uint32_t CodePoints(std::string_view text) {
  // Every byte but those that go on a character.
  return static_cast<uint32_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

Result<ChoiceTokens> TokenizeChoice(const Engine& engine, const std::string& prompt,
                                    std::span<const std::string> endings, size_t max_tokens) {
  const std::vector<int32_t> context = engine.Tokenize(prompt, /*add_special=*/true, /*parse_special=*/false);
  ChoiceTokens item;
  size_t longest = 0;
  for (const std::string& ending : endings) {
    auto tokens = engine.Tokenize(prompt + " " + ending, /*add_special=*/true, /*parse_special=*/false);
    const size_t n_context = CommonPrefix(context, tokens);
    if (n_context == 0 || n_context == tokens.size()) {
      return MakeError(Code::kInvalidArgument, "eval: an ending or its context has no tokens");
    }
    longest = std::max(longest, tokens.size());
    item.n_context.push_back(n_context);
    item.n_characters.push_back(CodePoints(ending));
    item.sequences.push_back(std::move(tokens));
  }
  if (longest <= max_tokens) return item;
  item.is_cut = true;
  const size_t begin = engine.Tokenize("", /*add_special=*/true, /*parse_special=*/false).size();  // the start token
  const size_t n_left_out = longest - max_tokens;
  for (size_t i = 0; i < item.sequences.size(); ++i) {
    auto& tokens = item.sequences[i];
    if (begin + n_left_out >= item.n_context[i]) {
      return MakeError(Code::kInvalidArgument, "eval: an ending of {} tokens, the context holds {}: raise -c",
                       tokens.size() - item.n_context[i], max_tokens);
    }
    const auto first = tokens.begin() + static_cast<ptrdiff_t>(begin);
    tokens.erase(first, first + static_cast<ptrdiff_t>(n_left_out));
    item.n_context[i] -= n_left_out;
  }
  return item;
}

Result<std::vector<double>> ChoiceScorer::Score(const ChoiceTokens& tokens, const std::function<bool()>& keep_going) {
  std::vector<double> sums;
  for (size_t i = 0; i < tokens.sequences.size(); ++i) {
    NM_TRY_VAR(sums.emplace_back(), ScoreOne(tokens.sequences[i], tokens.n_context[i]));
    if (!keep_going()) return MakeError(Code::kCancelled, "eval: stopped");
  }
  return sums;
}

Result<double> ChoiceScorer::ScoreOne(std::span<const int32_t> tokens, size_t n_context) {
  // The logits that judge the first scored token come from the one before it, which is read again.
  const size_t shared = shares_prefix_ ? std::min(CommonPrefix(session_.tokens(), tokens), n_context - 1) : 0;
  session_.Truncate(shared);
  const size_t n_scored = tokens.size() - n_context;
  if (n_scored > kMaxLogitBytes / (vocab_size_ * sizeof(float))) {
    return MakeError(Code::kInvalidArgument, "eval: an ending of {} tokens, limit {}", n_scored,
                     kMaxLogitBytes / (vocab_size_ * sizeof(float)));
  }
  logits_.resize(n_scored * vocab_size_);
  // The last token judges nothing.
  NM_TRY(session_.AppendWithLogits(tokens.subspan(shared, tokens.size() - 1 - shared), logits_));
  double sum = 0;
  for (size_t i = 0; i < n_scored; ++i) {
    const auto row = std::span<const float>(logits_).subspan(i * vocab_size_, vocab_size_);
    sum += row[static_cast<size_t>(tokens[n_context + i])] - LogSumExp(row);
  }
  return sum;
}

std::vector<double> EndingScores(std::span<const double> log_probs, std::span<const uint32_t> divisors) {
  std::vector<double> scores(log_probs.begin(), log_probs.end());
  for (size_t i = 0; i < scores.size() && !divisors.empty(); ++i) scores[i] /= std::max(divisors[i], 1u);
  return scores;
}

size_t BestEnding(std::span<const double> log_probs, std::span<const uint32_t> divisors) {
  return FindTop(EndingScores(log_probs, divisors)).best;
}

}  // namespace npumoe
