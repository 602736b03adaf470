// SPDX-License-Identifier: Apache-2.0
// Which experts the tokens of one append got, for comparing runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace npumoe {

// Filled by forward passes chunk by chunk and layer by layer. One thread at a time.
class ChoiceLog {
 public:
  explicit ChoiceLog(const ModelConfig& config);

  // Forgets what was seen; from here on tokens at [first_position, first_position + n_tokens) are of interest.
  void Begin(size_t first_position, size_t n_tokens);
  // Choices of a MoE layer for tokens at `position`...; those before the first of interest are left out.
  void See(uint32_t layer, size_t position, std::span<const uint32_t> experts);  // [tokens, top_k]

  // [MoE layers, tokens, top_k], kNoExpert where nothing was seen.
  std::span<const uint32_t> experts() const { return experts_; }

 private:
  const size_t top_k_;
  std::vector<uint32_t> row_of_layer_;  // [n_layers] among the MoE layers
  size_t n_moe_layers_ = 0, first_position_ = 0, n_tokens_ = 0;
  std::vector<uint32_t> experts_;
};

}  // namespace npumoe
