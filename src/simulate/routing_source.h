// SPDX-License-Identifier: Apache-2.0
// Where simulated prompts route their tokens: made-up popularity with drift, or what a calibration saw.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "moe/routing_stats.h"
#include "npumoe/result.h"

namespace npumoe {

// Loads of a prompt's experts in steps of `step_tokens`: [n_layers][n_experts]; the last step may be shorter.
struct RoutedPrompt {
  uint32_t step_tokens = 0, n_tokens = 0;
  std::vector<std::vector<std::vector<uint32_t>>> loads;  // [steps][n_layers][n_experts]; dense layers are empty

  // Of the tokens [first, last), both multiples of step_tokens or the end of the prompt.
  std::vector<uint32_t> Loads(uint32_t layer, uint32_t first, uint32_t last) const;
};

// "zipf:S" or "zipf:S,D".
struct ZipfRouting {
  double exponent = 0;  // popularity of the expert of rank r is proportional to r^-exponent; ranks differ by layer
  double drift = 0;     // standard deviation of the log popularity's change from prompt to prompt; half of it per chunk
};
// kInvalidArgument names what was wanted.
Result<ZipfRouting> ParseZipf(std::string_view text);

// Every token of every layer chooses top_k experts one after the other, each in proportion to its popularity among
// those not yet chosen. Popularity is r^-exponent times exp(drift * g_prompt + drift / 2 * g_step) with standard normal
// g for each expert, layer and prompt or step. Prompts of one seed are the same on every machine.
class RoutingSource {
 public:
  // `stats` of a calibration: popularity is what it saw, and `zipf.exponent` is not used. Both are borrowed.
  RoutingSource(const ModelConfig& config, const ZipfRouting& zipf, const RoutingStats* stats);

  RoutedPrompt Prompt(uint64_t seed, uint32_t n_tokens, uint32_t step_tokens) const;
  // The same source with another drift.
  RoutingSource WithDrift(double drift) const;
  double drift() const { return zipf_.drift; }

  // What `npumoe calibrate` would write after reading `n_prompts` prompts with the given seeds: what plans are made
  // from. chunk_tokens: ascending lengths, multiples of the first. Asks before each prompt whether to go on; fewer were
  // read if not.
  RoutingStats Calibrate(uint64_t first_seed, uint32_t n_prompts, uint32_t n_tokens,
                         const std::vector<uint32_t>& chunk_tokens, const std::function<bool()>& go_on = {}) const;

 private:
  const ModelConfig& config_;
  ZipfRouting zipf_;
  std::vector<std::vector<double>> log_popularity_;  // [n_layers][n_experts]
};

}  // namespace npumoe
