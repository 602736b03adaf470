// SPDX-License-Identifier: Apache-2.0
// From routing decisions, token after token, to RoutingStats: pure counting, no model and no clock.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "moe/routing_stats.h"

namespace npumoe {

struct RoutingShape {
  std::vector<bool> moe_layer;  // [n_layers]
  uint32_t n_experts = 0, top_k = 0;
};

// What one stretch of tokens did in one layer. Dense layers: no choices, no norms.
struct LayerObservation {
  std::span<const uint32_t> choices;     // [tokens, top_k]
  std::span<const double> output_norms;  // [n_experts] L2 norms of unweighted outputs, summed over the expert's tokens
  ActivationRange range;
};

struct RoutingCounts {
  RoutingStats stats;
  std::vector<uint64_t> n_chunks;  // [stats.chunk_tokens] counted for each length
  std::vector<uint32_t> unfilled;  // lengths that no sequence filled, ascending
  bool made_up_length = false;     // the one length of the result is that of the longest sequence
};

// Chunks are consecutive tokens of one sequence, counted from its start; a sequence is a text, or what a context holds
// of it. The part that is left at a sequence's end is shorter than a chunk and enters no histogram (it counts
// everywhere else). Lengths that no sequence filled are left out of the result; when that is all of them, the longest
// sequence makes one length of its own. One thread at a time.
class RoutingStatsBuilder {
 public:
  // `chunk_tokens`: ascending, > 0. Co-activation is gathered if all its counts are at most kMaxCoActivations.
  RoutingStatsBuilder(RoutingShape shape, std::vector<uint32_t> chunk_tokens);

  // A new text of `n_tokens`, and with it a new sequence. Its halves are those of what is read of it: by thirty-seconds
  // of n_tokens, so exactly the halves when all of it is read (the first half is the longer).
  void BeginSource(std::string name, uint64_t n_tokens);
  void BeginSequence();
  // The next `n_tokens` of the sequence. layers: [n_layers].
  void Add(uint32_t n_tokens, std::span<const LayerObservation> layers);

  // What was counted; name and hash of the model are the caller's to fill in. Texts of which nothing was read are left
  // out.
  RoutingCounts Finish() &&;
  bool has_co_activation() const { return has_co_activation_; }

  static constexpr uint64_t kMaxCoActivations = uint64_t{1} << 24;  // 64 MiB; 512 experts in 64 layers fit

 private:
  static constexpr size_t kSlices = 32;

  struct Layer {
    LayerRouting routing;
    std::vector<std::vector<uint32_t>> chunk;  // [lengths][n_experts] loads of the chunk being filled
    std::vector<std::vector<uint64_t>> slice;  // [kSlices][n_experts] tokens of the current text
    std::vector<double> norms;                 // [n_experts] sums
    std::vector<LoadHistogram> partial;        // [n_experts] loads of the longest sequences, while nothing is filled
  };

  void AddChoices(Layer& layer, uint32_t n_tokens, std::span<const uint32_t> choices);
  void EndSequence();
  void EndSource();
  LayerRouting FinishLayer(Layer& layer) const;

  RoutingShape shape_;
  std::vector<uint32_t> lengths_;
  bool has_co_activation_ = false;
  std::vector<Layer> layers_;
  std::vector<std::string> sources_;
  std::vector<uint64_t> n_chunks_;  // [lengths]
  uint32_t partial_tokens_ = 0;     // length of the sequences in `partial`
  uint64_t n_partial_ = 0;          // how many they are
  uint64_t n_tokens_ = 0;
  uint64_t sequence_tokens_ = 0;  // of the current sequence
  std::string source_name_;
  uint64_t source_tokens_ = 0, source_total_ = 0;  // read of the current text; all of it
};

}  // namespace npumoe
