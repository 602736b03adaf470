// SPDX-License-Identifier: Apache-2.0
// Routing statistics of a model that nobody calibrated.
#pragma once

#include <cstdint>
#include <span>

#include "model/config.h"
#include "moe/routing_stats.h"

namespace npumoe {

// As if every token chose its experts at random and independently: all experts equally popular, loads binomial. Counts
// agree on average only, so this is for planning and never goes to a file. Ranges
// stay 0 (unknown). Empty for a dense model. `chunk_tokens` is ascending, each above 0.
RoutingStats UniformStats(const ModelConfig& config, std::span<const uint32_t> chunk_tokens);

}  // namespace npumoe
