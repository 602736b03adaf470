// SPDX-License-Identifier: Apache-2.0
#include "moe/dispatch.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace npumoe {

void Dispatch::Reserve(size_t max_tokens, size_t max_choices, size_t n_experts) {
  slots.reserve(max_tokens * max_choices);
  slot_of_choice.reserve(max_tokens * max_choices);
  expert_begin.reserve(n_experts + 1);
  old_slots.reserve(max_tokens);  // a token chooses an expert at most once
  order.reserve(max_tokens);
}

void BuildDispatch(std::span<const uint32_t> experts, std::span<const float> weights, size_t top_k, size_t n_experts,
                   Dispatch& dispatch) {
  NM_DCHECK(weights.size() == experts.size() && top_k > 0 && experts.size() % top_k == 0);
  dispatch.top_k = top_k;
  dispatch.slots.resize(experts.size());
  dispatch.slot_of_choice.resize(experts.size());
  dispatch.expert_begin.assign(n_experts + 1, 0);
  uint32_t* const begin = dispatch.expert_begin.data();
  for (const uint32_t expert : experts) {
    NM_DCHECK(expert < n_experts);
    ++begin[expert + 1];
  }
  for (size_t expert = 0; expert < n_experts; ++expert) begin[expert + 1] += begin[expert];
  // Filling moves every begin to its end, which is the next expert's begin: shifted back afterwards.
  Slot* const slots = dispatch.slots.data();
  uint32_t* const slot_of_choice = dispatch.slot_of_choice.data();
  const size_t n_tokens = experts.size() / top_k;
  for (size_t token = 0, choice = 0; token < n_tokens; ++token) {
    for (size_t j = 0; j < top_k; ++j, ++choice) {
      const uint32_t slot = begin[experts[choice]]++;
      slots[slot] = {static_cast<uint32_t>(token), weights[choice]};
      slot_of_choice[choice] = slot;
    }
  }
  std::copy_backward(dispatch.expert_begin.begin(), dispatch.expert_begin.end() - 1, dispatch.expert_begin.end());
  dispatch.expert_begin[0] = 0;
}

void KeepMostSalient(Dispatch& dispatch, uint32_t expert, uint32_t capacity) {
  const uint32_t begin = dispatch.expert_begin[expert], load = dispatch.Load(expert);
  if (load <= capacity) return;
  const std::span<Slot> slots = std::span(dispatch.slots).subspan(begin, load);
  const std::vector<Slot>& old = dispatch.old_slots;
  dispatch.old_slots.assign(slots.begin(), slots.end());
  std::vector<uint32_t>& order = dispatch.order;  // old places in the order that is wanted
  order.resize(load);
  std::iota(order.begin(), order.end(), 0u);
  const auto by_token = [&](uint32_t a, uint32_t b) { return old[a].token < old[b].token; };
  const auto kept_end = order.begin() + static_cast<ptrdiff_t>(capacity);
  std::nth_element(order.begin(), kept_end, order.end(), [&](uint32_t a, uint32_t b) {
    return old[a].weight != old[b].weight ? old[a].weight > old[b].weight : by_token(a, b);
  });
  std::sort(order.begin(), kept_end, by_token);
  std::sort(kept_end, order.end(), by_token);
  for (uint32_t place = 0; place < load; ++place) {
    slots[place] = old[order[place]];
    // The token chose this expert once, so that no other choice of it can point to the old place.
    const auto choices =
        std::span(dispatch.slot_of_choice).subspan(slots[place].token * dispatch.top_k, dispatch.top_k);
    *std::find(choices.begin(), choices.end(), begin + order[place]) = begin + place;
  }
}

}  // namespace npumoe
