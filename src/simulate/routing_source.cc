// SPDX-License-Identifier: Apache-2.0
#include "simulate/routing_source.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/random.h"
#include "npumoe/simulate.h"

namespace npumoe {
namespace {

// Seeds of layers, prompts and steps are far apart in SplitMix64's sequence when they differ by odd multiples.
constexpr uint64_t kLayerSeed = 0xd1342543de82ef95u, kPromptSeed = 0xa0761d6478bd642fu, kStepSeed = 0xe7037ed1a0b428dbu;
// An expert that the calibration never saw counts as seen half a time (the usual prior of a rare event).
constexpr double kUnseenTokens = 0.5;
constexpr double kMaxExponent = 8;

// Draws in proportion to fixed weights in constant time (Walker and Vose's alias method).
class AliasTable {
 public:
  explicit AliasTable(const std::vector<double>& weights) : keep_(weights.size()), alias_(weights.size()) {
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    const double n = static_cast<double>(weights.size());
    std::vector<uint32_t> small, large;
    for (uint32_t i = 0; i < weights.size(); ++i) {
      keep_[i] = weights[i] * n / total;
      alias_[i] = i;
      (keep_[i] < 1 ? small : large).push_back(i);
    }
    while (!small.empty() && !large.empty()) {
      const uint32_t low = small.back(), high = large.back();
      small.pop_back();
      alias_[low] = high;
      keep_[high] -= 1 - keep_[low];
      if (keep_[high] < 1) {
        large.pop_back();
        small.push_back(high);
      }
    }
    for (const uint32_t i : small) keep_[i] = 1;  // what is left differs from 1 by rounding
  }
  uint32_t Draw(Random& random) const {
    const auto i = static_cast<uint32_t>(random.Below(keep_.size()));
    return random.Uniform() < keep_[i] ? i : alias_[i];
  }

 private:
  std::vector<double> keep_;
  std::vector<uint32_t> alias_;
};

// What tokens choose, one expert after the other without any twice.
class Chooser {
 public:
  explicit Chooser(const std::vector<double>& weights)
      : table_(weights), log_weights_(weights.size()), taken_(weights.size()) {
    for (size_t e = 0; e < weights.size(); ++e) log_weights_[e] = std::log(weights[e]);  // -inf never wins over others
  }

  // Adds one token's choices.
  void Choose(uint32_t top_k, Random& random, std::vector<uint32_t>& loads) {
    std::fill(taken_.begin(), taken_.end(), 0);
    uint32_t k = 0;
    // Draws that meet one already taken are repeated: quick while few are taken, and they have little weight.
    uint32_t tries = 4 * top_k;
    for (; k < top_k && tries > 0; --tries) {
      const uint32_t expert = table_.Draw(random);
      if (taken_[expert] != 0) continue;
      taken_[expert] = 1;
      ++loads[expert];
      ++k;
    }
    if (k < top_k) ChooseFromRest(top_k - k, random, loads);
  }

 private:
  // The n smallest of exponential waiting times with the weights as rates have the law of n draws without repetition.
  void ChooseFromRest(uint32_t n, Random& random, std::vector<uint32_t>& loads) {
    waits_.clear();
    for (uint32_t e = 0; e < taken_.size(); ++e) {
      if (taken_[e] == 0) waits_.push_back({std::log(-std::log(1 - random.Uniform())) - log_weights_[e], e});
    }
    std::nth_element(waits_.begin(), waits_.begin() + (n - 1), waits_.end());
    for (uint32_t i = 0; i < n; ++i) ++loads[waits_[i].second];
  }

  AliasTable table_;
  std::vector<double> log_weights_;
  std::vector<uint8_t> taken_;
  std::vector<std::pair<double, uint32_t>> waits_;
};

}  // namespace

std::vector<uint32_t> RoutedPrompt::Loads(uint32_t layer, uint32_t first, uint32_t last) const {
  NM_CHECK(first % step_tokens == 0 && (last % step_tokens == 0 || last == n_tokens));
  std::vector<uint32_t> sum(loads[first / step_tokens][layer].size());
  for (uint32_t step = first / step_tokens; step * step_tokens < last; ++step) {
    for (size_t expert = 0; expert < sum.size(); ++expert) sum[expert] += loads[step][layer][expert];
  }
  return sum;
}

Result<ZipfRouting> ParseZipf(std::string_view text) {
  const auto wrong = [&] {
    return MakeError(
        Code::kInvalidArgument,
        "routing {}: wanted zipf:S or zipf:S,DRIFT with S in [0, {}] and DRIFT in [0, {}], as in zipf:0.6,0.3", text,
        kMaxExponent, kMaxDrift);
  };
  constexpr std::string_view kPrefix = "zipf:";
  if (!text.starts_with(kPrefix)) return wrong();
  std::string_view rest = text.substr(kPrefix.size());
  const auto number = [&](double limit, double& out) {
    const size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), out);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    return error == std::errc() && end == part.data() + part.size() && out >= 0 && out <= limit;
  };
  const bool has_drift = rest.find(',') != std::string_view::npos;
  ZipfRouting zipf;
  if (!number(kMaxExponent, zipf.exponent)) return wrong();
  if (has_drift && (!number(kMaxDrift, zipf.drift) || !rest.empty())) return wrong();
  return zipf;
}

RoutingSource::RoutingSource(const ModelConfig& config, const ZipfRouting& zipf, const RoutingStats* stats)
    : config_(config), zipf_(zipf), log_popularity_(config.n_layers) {
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    if (!config.IsMoeLayer(layer)) continue;
    std::vector<double>& popularity = log_popularity_[layer];
    popularity.resize(config.n_experts);
    if (stats != nullptr) {
      for (uint32_t e = 0; e < config.n_experts; ++e) {
        popularity[e] = std::log(std::max(kUnseenTokens, static_cast<double>(stats->layers[layer].tokens[e])));
      }
      continue;
    }
    std::vector<uint32_t> experts(config.n_experts);
    std::iota(experts.begin(), experts.end(), 0u);
    Random random((layer + 1) * kLayerSeed);
    for (uint32_t i = config.n_experts - 1; i > 0; --i) std::swap(experts[i], experts[random.Below(i + 1)]);
    for (uint32_t rank = 0; rank < config.n_experts; ++rank) {
      popularity[experts[rank]] = -zipf.exponent * std::log(rank + 1.0);
    }
  }
}

RoutingSource RoutingSource::WithDrift(double drift) const {
  RoutingSource other = *this;
  other.zipf_.drift = drift;
  return other;
}

RoutedPrompt RoutingSource::Prompt(uint64_t seed, uint32_t n_tokens, uint32_t step_tokens) const {
  NM_CHECK(step_tokens > 0);
  RoutedPrompt prompt{step_tokens, n_tokens, {}};
  const uint32_t n_steps = (n_tokens + step_tokens - 1) / step_tokens;
  prompt.loads.assign(n_steps, std::vector<std::vector<uint32_t>>(config_.n_layers));
  std::vector<double> base, weights;
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    if (!config_.IsMoeLayer(layer)) continue;
    Random random((seed + 1) * kPromptSeed + (layer + 1) * kLayerSeed);
    base = log_popularity_[layer];
    for (double& p : base) p += zipf_.drift * random.Gaussian();
    for (uint32_t step = 0; step < n_steps; ++step) {
      Random of_step(random.Next() + (step + 1) * kStepSeed);
      weights = base;
      for (double& w : weights) w += zipf_.drift / 2 * of_step.Gaussian();
      const double top = *std::max_element(weights.begin(), weights.end());
      for (double& w : weights) w = std::exp(w - top);
      std::vector<uint32_t>& loads = prompt.loads[step][layer];
      loads.assign(config_.n_experts, 0);
      Chooser chooser(weights);
      const uint32_t n = std::min(step_tokens, n_tokens - step * step_tokens);
      for (uint32_t token = 0; token < n; ++token) chooser.Choose(config_.top_k, of_step, loads);
    }
  }
  return prompt;
}

RoutingStats RoutingSource::Calibrate(uint64_t first_seed, uint32_t n_prompts, uint32_t n_tokens,
                                      const std::vector<uint32_t>& chunk_tokens,
                                      const std::function<bool()>& go_on) const {
  RoutingStats stats;
  stats.model_name = "simulated";
  stats.n_layers = config_.n_layers;
  stats.n_experts = config_.n_experts;
  stats.top_k = config_.top_k;
  stats.chunk_tokens = chunk_tokens;
  stats.sources = {"simulated"};
  stats.layers.resize(config_.n_layers);
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    if (!config_.IsMoeLayer(layer)) continue;
    stats.layers[layer].loads.assign(chunk_tokens.size(), std::vector<LoadHistogram>(config_.n_experts));
    stats.layers[layer].tokens.assign(config_.n_experts, 0);
    stats.layers[layer].mean_output_norm.assign(config_.n_experts, 1.0);
  }
  for (uint32_t i = 0; i < n_prompts && (!go_on || go_on()); ++i) {
    const RoutedPrompt prompt = Prompt(first_seed + i, n_tokens, chunk_tokens[0]);
    stats.n_tokens += n_tokens;
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
      if (!config_.IsMoeLayer(layer)) continue;
      LayerRouting& routing = stats.layers[layer];
      for (size_t length = 0; length < chunk_tokens.size(); ++length) {
        const uint32_t chunk = chunk_tokens[length];
        for (uint32_t first = 0; first + chunk <= n_tokens; first += chunk) {
          const std::vector<uint32_t> loads = prompt.Loads(layer, first, first + chunk);
          for (uint32_t e = 0; e < config_.n_experts; ++e) ++routing.loads[length][e][loads[e]];
        }
      }
      const std::vector<uint32_t> all = prompt.Loads(layer, 0, n_tokens);
      for (uint32_t e = 0; e < config_.n_experts; ++e) routing.tokens[e] += all[e];
    }
  }
  return stats;
}

}  // namespace npumoe
