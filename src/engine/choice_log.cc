// SPDX-License-Identifier: Apache-2.0
#include "engine/choice_log.h"

#include <algorithm>

#include "base/check.h"
#include "npumoe/engine.h"

namespace npumoe {

ChoiceLog::ChoiceLog(const ModelConfig& config) : top_k_(config.top_k), row_of_layer_(config.n_layers) {
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    row_of_layer_[layer] = static_cast<uint32_t>(n_moe_layers_);
    n_moe_layers_ += config.IsMoeLayer(layer) ? 1 : 0;
  }
}

void ChoiceLog::Begin(size_t first_position, size_t n_tokens) {
  first_position_ = first_position;
  n_tokens_ = n_tokens;
  experts_.assign(n_moe_layers_ * n_tokens * top_k_, kNoExpert);
}

void ChoiceLog::See(uint32_t layer, size_t position, std::span<const uint32_t> experts) {
  const size_t skipped = position < first_position_ ? first_position_ - position : 0;
  if (skipped * top_k_ >= experts.size()) return;
  experts = experts.subspan(skipped * top_k_);
  const size_t token = position + skipped - first_position_;
  NM_CHECK(token + experts.size() / top_k_ <= n_tokens_);
  std::ranges::copy(experts,
                    experts_.begin() + static_cast<ptrdiff_t>((row_of_layer_[layer] * n_tokens_ + token) * top_k_));
}

}  // namespace npumoe
