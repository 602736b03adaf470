// SPDX-License-Identifier: Apache-2.0
// Who computes which row: routing decisions sorted by expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace npumoe {

// One (token, weight) pair: a row that an expert computes.
struct Slot {
  uint32_t token = 0;
  float weight = 0;
  bool operator==(const Slot&) const = default;
};

// Slots of all experts, expert after expert, tokens ascending within each until KeepMostSalient. Storage is reused
// between calls.
struct Dispatch {
  std::vector<Slot> slots;               // [tokens * top_k]
  std::vector<uint32_t> expert_begin;    // [n_experts + 1] first slot of each expert
  std::vector<uint32_t> slot_of_choice;  // [tokens, top_k] slot of a token's j-th choice
  size_t top_k = 0;                      // choices per token
  std::vector<Slot> old_slots;           // scratch of KeepMostSalient
  std::vector<uint32_t> order;           // the same

  // Makes later BuildDispatch calls up to this size free of allocation.
  void Reserve(size_t max_tokens, size_t max_choices, size_t n_experts);
  uint32_t Load(uint32_t expert) const { return expert_begin[expert + 1] - expert_begin[expert]; }
};

// Sorts choices by expert (a counting sort: stable, linear). Every id must be below n_experts.
void BuildDispatch(std::span<const uint32_t> experts,  // [tokens, top_k]
                   std::span<const float> weights,     // [tokens, top_k]
                   size_t top_k, size_t n_experts, Dispatch& dispatch);

// Moves the `capacity` slots with the largest weights to the front of the expert's slots, for pruning by saliency
// (weight times the expert's mean output norm, which all of its slots share). Of equal weights the lower token stays.
// Both parts keep tokens ascending; slot_of_choice follows. Does nothing when the load fits. Weights are not NaN.
void KeepMostSalient(Dispatch& dispatch, uint32_t expert, uint32_t capacity);

}  // namespace npumoe
