// SPDX-License-Identifier: Apache-2.0
// Log-likelihoods of endings after a context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "npumoe/engine.h"

namespace npumoe {

// An item as tokens. All endings stand behind the same `n_context` tokens.
struct ChoiceTokens {
  std::vector<std::vector<int32_t>> sequences;  // [endings] context and ending
  std::vector<size_t> n_context;                // [endings] leading tokens that are not scored, >= 1
  std::vector<uint32_t> n_characters;           // [endings] code points, the joining space not counted
  bool is_cut = false;                          // the context's beginning was left out
};

// Context and endings, joined by a space, as one text each. Scored is what differs from the tokens of the context
// alone: where a tokenizer joins the end of the context with the ending, that token belongs to the ending. More than
// `max_tokens` lose the context's beginning, after the start token if there is one. kInvalidArgument when an ending
// alone is too long, or the context is no token at all.
Result<ChoiceTokens> TokenizeChoice(const Engine& engine, const std::string& prompt,
                                    std::span<const std::string> endings, size_t max_tokens);

// Reads endings with one session. One thread at a time.
class ChoiceScorer {
 public:
  // With `shares_prefix`, keys and values of tokens that the last sequence began with too are used again; without,
  // every sequence is one prompt of its own, as overflow that is dropped or given away depends on who is read together.
  ChoiceScorer(Session& session, size_t vocab_size, bool shares_prefix)
      : session_(session), vocab_size_(vocab_size), shares_prefix_(shares_prefix) {}

  // Sums of log-probabilities of the scored tokens, an entry per ending. `keep_going` is asked after each; false:
  // kCancelled.
  Result<std::vector<double>> Score(const ChoiceTokens& tokens, const std::function<bool()>& keep_going);

 private:
  Result<double> ScoreOne(std::span<const int32_t> tokens, size_t n_context);

  Session& session_;
  const size_t vocab_size_;
  const bool shares_prefix_;
  std::vector<float> logits_;  // [scored tokens of a piece, vocab_size]
};

// [endings], log-probabilities over `divisors`: [endings], or empty for none.
std::vector<double> EndingScores(std::span<const double> log_probs, std::span<const uint32_t> divisors);
// Index of the largest of these scores, of equals the first.
size_t BestEnding(std::span<const double> log_probs, std::span<const uint32_t> divisors);

}  // namespace npumoe
