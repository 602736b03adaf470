// SPDX-License-Identifier: Apache-2.0
#include "moe/dispatch.h"

#include <algorithm>

#include "base/check.h"

namespace npumoe {

void Dispatch::Reserve(size_t max_tokens, size_t top_k, size_t n_experts) {
  slots.reserve(max_tokens * top_k);
  slot_of_choice.reserve(max_tokens * top_k);
  expert_begin.reserve(n_experts + 1);
}

void BuildDispatch(std::span<const uint32_t> experts, std::span<const float> weights, size_t top_k, size_t n_experts,
                   Dispatch& dispatch) {
  NM_DCHECK(weights.size() == experts.size() && top_k > 0 && experts.size() % top_k == 0);
  dispatch.slots.resize(experts.size());
  dispatch.slot_of_choice.resize(experts.size());
  dispatch.expert_begin.assign(n_experts + 1, 0);
  for (const uint32_t expert : experts) {
    NM_DCHECK(expert < n_experts);
    ++dispatch.expert_begin[expert + 1];
  }
  for (size_t expert = 0; expert < n_experts; ++expert) {
    dispatch.expert_begin[expert + 1] += dispatch.expert_begin[expert];
  }
  // Filling moves every begin to its end, which is the next expert's begin: shifted back afterwards.
  for (size_t choice = 0; choice < experts.size(); ++choice) {
    const uint32_t slot = dispatch.expert_begin[experts[choice]]++;
    dispatch.slots[slot] = {static_cast<uint32_t>(choice / top_k), weights[choice]};
    dispatch.slot_of_choice[choice] = slot;
  }
  std::copy_backward(dispatch.expert_begin.begin(), dispatch.expert_begin.end() - 1, dispatch.expert_begin.end());
  dispatch.expert_begin[0] = 0;
}

void Pack(std::span<const float> x, size_t dim, std::span<const Slot> slots, std::span<float> packed) {
  NM_DCHECK(packed.size() >= slots.size() * dim);
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto row = x.subspan(slots[i].token * dim, dim);
    std::copy(row.begin(), row.end(), packed.begin() + static_cast<ptrdiff_t>(i * dim));
  }
}

void ScatterAdd(std::span<const float> packed, size_t dim, const Dispatch& dispatch, size_t top_k, size_t token,
                std::span<float> y) {
  for (size_t choice = token * top_k; choice < (token + 1) * top_k; ++choice) {
    const uint32_t slot = dispatch.slot_of_choice[choice];
    const float weight = dispatch.slots[slot].weight;
    const float* row = packed.data() + slot * dim;
    for (size_t i = 0; i < dim; ++i) y[i] += weight * row[i];
  }
}

}  // namespace npumoe
