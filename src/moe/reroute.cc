// SPDX-License-Identifier: Apache-2.0
#include "moe/reroute.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/check.h"

namespace npumoe {
namespace {

class Rerouter {
 public:
  Rerouter(std::span<const float> logits, std::span<const uint32_t> capacities, uint32_t top_k,
           std::span<uint32_t> experts, std::span<float> weights)
      : logits_(logits),
        capacities_(capacities),
        top_k_(top_k),
        experts_(experts),
        weights_(weights),
        loads_(capacities.size()) {
    for (const uint32_t expert : experts) ++loads_[expert];
  }

  uint64_t Run() {
    uint64_t moved = 0;
    for (uint32_t expert = 0; expert < capacities_.size(); ++expert) {
      if (capacities_[expert] != kNoCapacity && loads_[expert] > capacities_[expert]) moved += Relieve(expert);
    }
    return moved;
  }

 private:
  uint64_t Relieve(uint32_t expert) {
    std::vector<size_t> choices;  // indices into experts_
    for (size_t i = 0; i < experts_.size(); ++i) {
      if (experts_[i] == expert) choices.push_back(i);
    }
    std::stable_sort(choices.begin(), choices.end(), [&](size_t a, size_t b) { return weights_[a] > weights_[b]; });
    uint64_t moved = 0;
    for (size_t i = capacities_[expert]; i < choices.size(); ++i) moved += Move(choices[i], expert) ? 1 : 0;
    return moved;
  }

  bool Move(size_t choice, uint32_t from) {
    const size_t token = choice / top_k_, n_experts = capacities_.size();
    const auto chosen = experts_.subspan(token * top_k_, top_k_);
    const auto logits = logits_.subspan(token * n_experts, n_experts);
    std::optional<uint32_t> best;
    for (uint32_t expert = 0; expert < n_experts; ++expert) {
      const bool room = capacities_[expert] != kNoCapacity && loads_[expert] < capacities_[expert];
      if (!room || std::find(chosen.begin(), chosen.end(), expert) != chosen.end()) continue;
      if (!best || logits[expert] > logits[*best]) best = expert;
    }
    if (!best) return false;
    --loads_[from];
    ++loads_[*best];
    experts_[choice] = *best;
    weights_[choice] *= std::exp(logits[*best] - logits[from]);
    return true;
  }

  std::span<const float> logits_;
  std::span<const uint32_t> capacities_;
  size_t top_k_;
  std::span<uint32_t> experts_;
  std::span<float> weights_;
  std::vector<uint32_t> loads_;  // [n_experts]
};

}  // namespace

uint64_t Reroute(std::span<const float> logits, std::span<const uint32_t> capacities, uint32_t top_k,
                 std::span<uint32_t> experts, std::span<float> weights) {
  NM_CHECK(top_k > 0 && experts.size() == weights.size() && experts.size() % top_k == 0);
  NM_CHECK(logits.size() == experts.size() / top_k * capacities.size());
  return Rerouter(logits, capacities, top_k, experts, weights).Run();
}

}  // namespace npumoe
