// SPDX-License-Identifier: Apache-2.0
// Reroute: overflow goes to the token's next choice with room.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

namespace npumoe {

// An expert that takes every row routed to it, and none that was routed elsewhere.
inline constexpr uint32_t kNoCapacity = std::numeric_limits<uint32_t>::max();

// Where an expert has more rows than its capacity, those of the least weight (ties: the later token) leave for the
// token's best expert by logit that it has not chosen and that has room (ties: the lower id); the new weight is the old
// one times exp(new logit - old logit), what a softmax gives one relative to the other. Rows that no expert has room
// for stay. Experts are relieved in ascending order. Returns how many rows moved; deterministic.
uint64_t Reroute(std::span<const float> logits,         // [tokens, n_experts]
                 std::span<const uint32_t> capacities,  // [n_experts] or kNoCapacity
                 uint32_t top_k,
                 std::span<uint32_t> experts,  // [tokens, top_k], changed in place
                 std::span<float> weights);    // [tokens, top_k], likewise

}  // namespace npumoe
