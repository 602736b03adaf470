// SPDX-License-Identifier: Apache-2.0
// Router logits to chosen experts and weights, in each family's exact rule.
#pragma once

#include <cstdint>
#include <span>

#include "model/config.h"

namespace npumoe {

// Chooses config.top_k experts for one token. Ties go to the lower expert id. NaN logits count as -inf, so that the ids
// are always valid. experts and weights: [top_k], in the order of choice. scratch: [n_experts].
void Route(const ModelConfig& config, std::span<const float> logits,  // [n_experts]
           std::span<float> scratch, std::span<uint32_t> experts, std::span<float> weights);

}  // namespace npumoe
