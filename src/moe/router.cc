// SPDX-License-Identifier: Apache-2.0
#include "moe/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace npumoe {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Index of the largest value; ties go to the lower index.
uint32_t ArgMax(std::span<const float> values) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < values.size(); ++i) {
    if (values[i] > values[best]) best = i;
  }
  return best;
}

// The top_k largest logits, NaN counting as -inf, in falling order; of equals the lower id comes first, so that the ids
// stay distinct even if only -inf is left (a model with broken weights). `kept` holds their values: [top_k].
// One pass with insertion: of n logits in any order about top_k * ln(n / top_k) get past the first comparison.
void TakeTopK(std::span<const float> logits, std::span<uint32_t> experts, std::span<float> kept) {
  const size_t top_k = experts.size();
  for (size_t i = 0; i < logits.size(); ++i) {
    const float value = logits[i] > kMinusInf ? logits[i] : kMinusInf;
    size_t place = std::min(i, top_k);
    if (place == top_k) {
      if (!(value > kept[top_k - 1])) continue;
      --place;
    }
    for (; place > 0 && kept[place - 1] < value; --place) {
      kept[place] = kept[place - 1];
      experts[place] = experts[place - 1];
    }
    kept[place] = value;
    experts[place] = static_cast<uint32_t>(i);
  }
}

void Normalize(std::span<float> weights) {
  float sum = 0;
  for (const float w : weights) sum += w;
  if (sum <= 0) return;
  for (float& w : weights) w /= sum;
}

// exp(logit - max) of every expert, divided by the sum over all.
void SoftmaxTopK(std::span<const float> logits, std::span<const uint32_t> experts, std::span<float> weights) {
  const float top = logits[experts[0]];
  float sum = 0;
  for (const float logit : logits) {
    if (logit > kMinusInf) sum += std::exp(logit - top);
  }
  for (size_t choice = 0; choice < experts.size(); ++choice) {
    const float logit = logits[experts[choice]];
    weights[choice] = logit > kMinusInf ? std::exp(logit - top) / sum : 0.0f;
  }
}

void TopKSoftmax(std::span<const float> logits, std::span<const uint32_t> experts, std::span<float> weights) {
  const float top = logits[experts[0]];
  for (size_t choice = 0; choice < experts.size(); ++choice) {
    const float logit = logits[experts[choice]];
    weights[choice] = logit > kMinusInf ? std::exp(logit - top) : 0.0f;
  }
  Normalize(weights);
}

// Phi-3.5-MoE's inference rule (Hugging Face, PhiMoE `sparsemixer`): the winner's weight is its share of a softmax over
// the gates within 2 * jitter of it, relative to the larger of |gate| and the winner; then the winner is removed and
// the rule repeats. The threshold test compares the original gates also in later rounds; the weights do not sum to 1.
void SparseMixer(std::span<const float> logits, float jitter, std::span<float> left, std::span<uint32_t> experts,
                 std::span<float> weights) {
  for (size_t choice = 0; choice < experts.size(); ++choice) {
    const uint32_t best = ArgMax(left);
    const float top = left[best];
    float sum = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const float factor = std::max(std::fabs(logits[i]), top);
      // 0 / 0 is NaN and compares false: such a gate is kept, as in the reference.
      const bool masked = (top - logits[i]) / factor > 2 * jitter;
      if (!masked && left[i] > kMinusInf) sum += std::exp(left[i] - top);
    }
    experts[choice] = best;
    weights[choice] = sum > 0 ? 1.0f / sum : 0.0f;
    left[best] = kMinusInf;
  }
}

}  // namespace

void Route(const ModelConfig& config, std::span<const float> logits, std::span<float> scratch,
           std::span<uint32_t> experts, std::span<float> weights) {
  NM_DCHECK(logits.size() == config.n_experts && scratch.size() == logits.size());
  NM_DCHECK(experts.size() == config.top_k && weights.size() == config.top_k);
  switch (config.router) {
    case RouterRule::kSoftmaxTopK:
      TakeTopK(logits, experts, weights);
      // Dividing by the sum over all and then by the sum over the chosen is the softmax of the chosen.
      if (config.renormalize_top_k)
        TopKSoftmax(logits, experts, weights);
      else
        SoftmaxTopK(logits, experts, weights);
      return;
    case RouterRule::kTopKSoftmax:
      TakeTopK(logits, experts, weights);
      TopKSoftmax(logits, experts, weights);
      return;
    case RouterRule::kSparseMixer:
      for (size_t i = 0; i < logits.size(); ++i) scratch[i] = std::isnan(logits[i]) ? kMinusInf : logits[i];
      SparseMixer(logits, config.router_jitter, scratch, experts, weights);
      return;
  }
}

}  // namespace npumoe
