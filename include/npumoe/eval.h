// SPDX-License-Identifier: Apache-2.0
// How right a run is: perplexity of a text, and agreement with the exact run on the CPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "npumoe/engine.h"
#include "npumoe/result.h"

namespace npumoe {

struct EvalOptions {
  uint64_t max_tokens = 0;     // of the text; 0 = all
  uint32_t window_tokens = 0;  // the text is read in windows of so many tokens; 0 = the context, at most 2,048
};

// Next-token distributions against those of another run, over all positions.
struct Agreement {
  double top1 = 0;                                // share of positions with the same likeliest token
  double mean_kl = 0, median_kl = 0, p99_kl = 0;  // KL(other || this), nats
  double other_perplexity = 0;
};

struct EvalReport {
  uint64_t n_tokens = 0;  // predicted: every token of a window but its first
  double mean_nll = 0;    // nats
  double perplexity = 0;
  double nll_standard_error = 0;  // of mean_nll, tokens taken as independent
  std::optional<Agreement> agreement;
  RunReport npu;  // empty layers without an NPU
};

// Reads `text` with `engine`; with `exact`, another engine of the same model, also compares. Fails with
// kInvalidArgument when the text has fewer than two tokens or the vocabularies differ, and with kCancelled when
// `progress` says false.
Result<EvalReport> Evaluate(Engine& engine, Engine* exact, std::string_view text, const EvalOptions& options,
                            const ProgressFn& progress);

}  // namespace npumoe
