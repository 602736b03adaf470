// SPDX-License-Identifier: Apache-2.0
#include "moe/batch_loads.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "moe/layer_cost.h"

namespace npumoe {
namespace {

Result<size_t> CalibratedChunk(const ModelConfig& config, const RoutingStats& stats, uint32_t n_tokens) {
  size_t best = stats.chunk_tokens.size();
  double least = 0;
  for (size_t i = 0; i < stats.chunk_tokens.size(); ++i) {
    bool seen = stats.chunk_tokens[i] > 0;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
      if (!config.IsMoeLayer(layer)) continue;
      const auto& experts = stats.layers[layer].loads[i];
      seen = seen && std::any_of(experts.begin(), experts.end(), [](const LoadHistogram& h) { return !h.empty(); });
    }
    if (!seen) continue;
    const double distance = std::fabs(std::log(static_cast<double>(stats.chunk_tokens[i]) / n_tokens));
    if (best == stats.chunk_tokens.size() || distance <= least) best = i, least = distance;
  }
  if (best < stats.chunk_tokens.size()) return best;
  return MakeError(Code::kInvalidArgument,
                   "routing statistics: no chunk of any length in some layer: calibrate with "
                   "more text");
}

}  // namespace

Result<BatchLoads> LoadsOf(const ModelConfig& config, const RoutingStats& stats, uint32_t n_tokens) {
  NM_TRY_VAR(const size_t index, CalibratedChunk(config, stats, n_tokens));
  BatchLoads loads{stats.chunk_tokens[index], std::vector<std::vector<LoadHistogram>>(config.n_layers)};
  const double ratio = static_cast<double>(n_tokens) / loads.calibrated_tokens;
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    if (!config.IsMoeLayer(layer)) continue;
    for (const LoadHistogram& histogram : stats.layers[layer].loads[index]) {
      loads.histograms[layer].push_back(loads.calibrated_tokens == n_tokens ? histogram
                                                                            : ScaleLoads(histogram, ratio, n_tokens));
    }
  }
  return loads;
}

}  // namespace npumoe
