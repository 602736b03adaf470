// SPDX-License-Identifier: Apache-2.0
// RoutingStats: what calibration saw of a model's routing; the planner's input.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

// Tokens routed to one expert in one chunk -> number of chunks in which that happened. Loads of 0 count.
using LoadHistogram = std::map<uint32_t, uint64_t>;

// Largest absolute values seen per stage: what endangers fp16 (65,504).
struct ActivationRange {
  float attention_in = 0, q = 0, k = 0, v = 0, attention_out = 0, residual = 0;
  float ffn_in = 0, gate = 0, up = 0, hidden = 0, expert_out = 0;
};

struct ActivationStage {
  std::string_view name;
  float ActivationRange::*value;
};
// In name order, as files have them.
inline constexpr ActivationStage kActivationStages[] = {
    {"attention_in", &ActivationRange::attention_in},
    {"attention_out", &ActivationRange::attention_out},
    {"expert_out", &ActivationRange::expert_out},
    {"ffn_in", &ActivationRange::ffn_in},
    {"gate", &ActivationRange::gate},
    {"hidden", &ActivationRange::hidden},
    {"k", &ActivationRange::k},
    {"q", &ActivationRange::q},
    {"residual", &ActivationRange::residual},
    {"up", &ActivationRange::up},
    {"v", &ActivationRange::v},
};
// The stage with the largest value (the first of equals).
const ActivationStage& LargestStage(const ActivationRange& range);

struct LayerRouting {
  // [chunk length in RoutingStats::chunk_tokens][n_experts]
  std::vector<std::vector<LoadHistogram>> loads;
  std::vector<uint64_t> tokens;          // [n_experts] routed in all
  std::vector<double> mean_output_norm;  // [n_experts] mean L2 norm of the expert's unweighted output; 0 = never seen
  std::vector<uint32_t> co_activation;   // [n_experts, n_experts] tokens that chose both; symmetric, diagonal = tokens
  std::vector<std::vector<uint64_t>> half_tokens;    // [2][n_experts] first and second half of the text
  std::vector<std::vector<uint64_t>> source_tokens;  // [n_sources][n_experts]
  ActivationRange range;
};

struct RoutingStats {
  std::string model_name, model_hash;  // what it was made from
  uint32_t n_layers = 0, n_experts = 0, top_k = 0;
  std::vector<uint32_t> chunk_tokens;  // ascending
  std::vector<std::string> sources;    // names of the texts, in order ("domains")
  uint64_t n_tokens = 0;               // read in all
  bool complete = true;                // false: interrupted, holds what was gathered
  std::vector<LayerRouting> layers;    // [n_layers]; a dense layer's vectors are empty

  // Index of the largest chunk length <= `tokens`, or 0 if all are larger.
  size_t ChunkIndex(uint32_t tokens) const;
};

// Sorted, versioned JSON. Parse fails with kCorruptFile naming the field; `name` is the subject of messages.
std::string ToJson(const RoutingStats& stats);
Result<RoutingStats> ParseRoutingStats(std::string_view json, std::string_view name);

// How uneven a layer's popularity is.
struct Skew {
  double hottest_over_mean = 0;  // tokens of the hottest expert / mean
  double effective_experts = 0;  // exp(entropy of popularity)
  uint32_t unseen = 0;           // experts no token chose
};
Skew SkewOf(const LayerRouting& layer);

// Total variation distance of two popularities, 0 (same) to 1 (disjoint). Empty counts give 1.
double PopularityDistance(std::span<const uint64_t> a, std::span<const uint64_t> b);

}  // namespace npumoe
