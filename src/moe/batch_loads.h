// SPDX-License-Identifier: Apache-2.0
// Loads of experts when so many tokens are routed at once, from statistics of other lengths.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "moe/routing_stats.h"
#include "npumoe/result.h"

namespace npumoe {

struct BatchLoads {
  uint32_t calibrated_tokens = 0;                      // the length they were scaled from
  std::vector<std::vector<LoadHistogram>> histograms;  // [n_layers][n_experts]; dense layers: empty
};

// Scaled (see ScaleLoads) from the calibrated length nearest to `n_tokens` by ratio, of equals the longer, at which
// every MoE layer has a chunk. Fails (kInvalidArgument) when there is none. The statistics must have been checked.
Result<BatchLoads> LoadsOf(const ModelConfig& config, const RoutingStats& stats, uint32_t n_tokens);

}  // namespace npumoe
