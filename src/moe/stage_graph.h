// SPDX-License-Identifier: Apache-2.0
// The two kinds of graph a plan turns into: a layer's attention stage and a group of experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "graph/graph.h"
#include "model/config.h"
#include "model/weights.h"
#include "moe/plan.h"

namespace npumoe {

// Rounds up to what a spec pads rows to; the planner's capacities and chunk lengths are such multiples already.
constexpr size_t RoundUp(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Name of the function of an expert group compiled for `capacity` rows per expert, and of an attention stage that sees
// `kv_length` earlier positions.
std::string CapacityFunction(uint32_t capacity);
std::string KvFunction(uint32_t kv_length);

// Formats of an expert's projections; one for all of them where a single one is given.
struct ExpertFormats {
  ExpertFormats(WeightFormat all) : gate_up(all), down(all) {}  // NOLINT(google-explicit-constructor)
  ExpertFormats(WeightFormat of_gate_up, WeightFormat of_down) : gate_up(of_gate_up), down(of_down) {}
  WeightFormat gate_up, down;
};

// Experts of one tier as one grouped 1x1 convolution per projection, one function per capacity C:
//   x [1, G * dim, 1, C]  ->  y [1, G * dim, 1, C]
// Slice g of the channels is experts[g]. Weights become fp16 (or the plan's format). The up projection is divided by
// `expert_scale`, which makes the hidden values and y smaller by that factor: the caller multiplies y back. Weights are
// converted by all threads of `pool`; the graph is the same without one. Fails as AddWeight does.
Result<Graph> BuildExpertGroup(const ModelConfig& config, const LayerWeights& weights, const ExpertGroup& group,
                               ExpertFormats formats, float expert_scale, ThreadPool* pool = nullptr);

// Attention of one layer for a chunk of C tokens, one function per length L of the cache bucket:
//   x     [1, dim, 1, C]                 residual stream
//   cos, sin [1, 1, rope_dim / 2, C]
//   mask  [1, 1, C, L + C]               0 where visible, a large negative number elsewhere
//   k_cache, v_cache [1, n_kv_heads, L, head_dim]   rotated keys; absent when L = 0
// ->
//   delta [1, dim, 1, C]                 to be added to the residual stream
//   k_new, v_new [1, n_kv_heads, C, head_dim]
//   router [1, n_experts, 1, C]          logits; absent in a dense layer
// Keys are in half-split (NeoX) order whatever the file's; see HeadPermutation.
Result<Graph> BuildAttentionStage(const ModelConfig& config, const LayerWeights& weights, bool moe_layer,
                                  uint32_t chunk_tokens, std::span<const uint32_t> kv_lengths, WeightFormat format,
                                  ThreadPool* pool = nullptr);

// Position in a half-split head of element i of the file's head: identity unless rope_interleaved.
std::vector<uint32_t> HeadPermutation(const ModelConfig& config);

// Additive mask value of fp16 graphs: far below any score, and still finite after adding one (65,504 is the largest).
inline constexpr float kMaskedScore = -30000.0f;

}  // namespace npumoe
