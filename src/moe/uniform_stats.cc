// SPDX-License-Identifier: Apache-2.0
#include "moe/uniform_stats.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"

namespace npumoe {
namespace {

constexpr uint32_t kChunks = 64;  // stand-ins, one per 64th of the distribution

// Loads at the middles of kChunks equal shares of Binomial(n, p), by walking the distribution once.
LoadHistogram BinomialLoads(uint32_t n, double p) {
  LoadHistogram histogram;
  if (p >= 1) {
    histogram[n] = kChunks;
    return histogram;
  }
  const double sigma = std::sqrt(n * p * (1 - p));
  // Nothing below eight deviations counts; walking from 0 would underflow for long chunks.
  const auto first = static_cast<uint32_t>(std::max(0.0, std::floor(n * p - 8 * sigma - 8)));
  const auto log_choose = [&](double k) { return std::lgamma(n + 1.0) - std::lgamma(k + 1) - std::lgamma(n - k + 1); };
  double probability = std::exp(log_choose(first) + first * std::log(p) + (n - first) * std::log1p(-p));
  double below = probability;
  uint32_t load = first;
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    const double share = (chunk + 0.5) / kChunks;
    while (below < share && load < n) {
      probability *= (n - load) / (load + 1.0) * p / (1 - p);
      below += probability;
      ++load;
    }
    ++histogram[load];
  }
  return histogram;
}

}  // namespace

RoutingStats UniformStats(const ModelConfig& config, std::span<const uint32_t> chunk_tokens) {
  RoutingStats stats;
  if (config.n_experts == 0) return stats;
  NM_CHECK(!chunk_tokens.empty());
  stats.model_name = config.name;
  stats.n_layers = config.n_layers;
  stats.n_experts = config.n_experts;
  stats.top_k = config.top_k;
  stats.chunk_tokens.assign(chunk_tokens.begin(), chunk_tokens.end());
  stats.n_tokens = uint64_t{kChunks} * chunk_tokens.back();
  const double p = static_cast<double>(config.top_k) / config.n_experts;
  LayerRouting routing;
  for (const uint32_t tokens : chunk_tokens) {
    routing.loads.emplace_back(config.n_experts, BinomialLoads(tokens, p));
  }
  routing.tokens.assign(config.n_experts, stats.n_tokens * config.top_k / config.n_experts + 1);
  routing.mean_output_norm.assign(config.n_experts, 0);
  routing.half_tokens.assign(2, std::vector<uint64_t>(config.n_experts, routing.tokens[0] / 2));
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    stats.layers.push_back(config.IsMoeLayer(layer) ? routing : LayerRouting{});
  }
  return stats;
}

}  // namespace npumoe
