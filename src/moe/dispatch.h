// SPDX-License-Identifier: Apache-2.0
// Who computes which row: routing decisions sorted by expert, rows packed, outputs scattered back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace npumoe {

// One (token, weight) pair assigned to a packed row.
struct Slot {
  uint32_t token = 0;
  float weight = 0;
};

// Slots of all experts, expert after expert, tokens ascending within each. Storage is reused between calls.
struct Dispatch {
  std::vector<Slot> slots;             // [tokens * top_k]
  std::vector<uint32_t> expert_begin;  // [n_experts + 1] first slot of each expert
  std::vector<uint32_t> slot_of_choice;  // [tokens * top_k] slot of a token's j-th choice

  uint32_t Load(uint32_t expert) const { return expert_begin[expert + 1] - expert_begin[expert]; }
};

// Sorts choices by expert (a counting sort: stable, linear). experts, weights: [tokens, top_k].
void BuildDispatch(std::span<const uint32_t> experts, std::span<const float> weights, size_t n_tokens, size_t top_k,
                   size_t n_experts, Dispatch& dispatch);

// packed[i] = x[slots[i].token]. x: [tokens, dim], packed: [slots, dim].
void Pack(std::span<const float> x, size_t dim, std::span<const Slot> slots, std::span<float> packed);

// y[slots[i].token] += slots[i].weight * packed[i], in slot order. y: [tokens, dim].
void ScatterAdd(std::span<const float> packed, size_t dim, std::span<const Slot> slots, std::span<float> y);

}  // namespace npumoe
