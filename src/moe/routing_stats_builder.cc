// SPDX-License-Identifier: Apache-2.0
#include "moe/routing_stats_builder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace npumoe {
namespace {

void Widen(ActivationRange& range, const ActivationRange& seen) {
  for (const ActivationStage& stage : kActivationStages) {
    range.*stage.value = std::max(range.*stage.value, seen.*stage.value);
  }
}

void CountLoads(std::span<const uint32_t> loads, std::vector<LoadHistogram>& histograms) {
  for (size_t expert = 0; expert < loads.size(); ++expert) ++histograms[expert][loads[expert]];
}

}  // namespace

RoutingStatsBuilder::RoutingStatsBuilder(RoutingShape shape, std::vector<uint32_t> chunk_tokens)
    : shape_(std::move(shape)), lengths_(std::move(chunk_tokens)), layers_(shape_.moe_layer.size()) {
  NM_CHECK(!lengths_.empty() && lengths_.front() > 0 && std::is_sorted(lengths_.begin(), lengths_.end()));
  n_chunks_.resize(lengths_.size());
  const auto n_moe = static_cast<uint64_t>(std::count(shape_.moe_layer.begin(), shape_.moe_layer.end(), true));
  const uint64_t n = shape_.n_experts;
  has_co_activation_ = n * n * n_moe <= kMaxCoActivations;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!shape_.moe_layer[i]) continue;
    Layer& layer = layers_[i];
    layer.routing.loads.assign(lengths_.size(), std::vector<LoadHistogram>(n));
    layer.routing.tokens.assign(n, 0);
    if (has_co_activation_) layer.routing.co_activation.assign(n * n, 0);
    layer.routing.half_tokens.assign(2, std::vector<uint64_t>(n));
    layer.chunk.assign(lengths_.size(), std::vector<uint32_t>(n));
    layer.slice.assign(kSlices, std::vector<uint64_t>(n));
    layer.norms.assign(n, 0.0);
    layer.partial.resize(n);
  }
}

void RoutingStatsBuilder::BeginSource(std::string name, uint64_t n_tokens) {
  EndSource();
  source_name_ = std::move(name);
  source_total_ = n_tokens;
}

void RoutingStatsBuilder::BeginSequence() { EndSequence(); }

void RoutingStatsBuilder::Add(uint32_t n_tokens, std::span<const LayerObservation> layers) {
  NM_CHECK(layers.size() == layers_.size() && source_tokens_ + n_tokens <= source_total_);
  for (size_t i = 0; i < layers.size(); ++i) {
    Layer& layer = layers_[i];
    Widen(layer.routing.range, layers[i].range);
    if (!shape_.moe_layer[i]) continue;
    NM_CHECK(layers[i].choices.size() == size_t{n_tokens} * shape_.top_k);
    AddChoices(layer, n_tokens, layers[i].choices);
    for (size_t expert = 0; expert < layer.norms.size(); ++expert) {
      layer.norms[expert] += layers[i].output_norms[expert];
    }
  }
  for (size_t l = 0; l < lengths_.size(); ++l) {
    n_chunks_[l] += (sequence_tokens_ + n_tokens) / lengths_[l] - sequence_tokens_ / lengths_[l];
  }
  n_tokens_ += n_tokens;
  sequence_tokens_ += n_tokens;
  source_tokens_ += n_tokens;
}

void RoutingStatsBuilder::AddChoices(Layer& layer, uint32_t n_tokens, std::span<const uint32_t> choices) {
  const size_t n = shape_.n_experts, top_k = shape_.top_k;
  for (uint32_t token = 0; token < n_tokens; ++token) {
    const auto chosen = choices.subspan(token * top_k, top_k);
    std::vector<uint64_t>& slice = layer.slice[(source_tokens_ + token) * kSlices / source_total_];
    for (const uint32_t expert : chosen) {
      ++layer.routing.tokens[expert];
      ++slice[expert];
      for (std::vector<uint32_t>& loads : layer.chunk) ++loads[expert];
      if (!has_co_activation_) continue;
      for (const uint32_t other : chosen) ++layer.routing.co_activation[expert * n + other];
    }
    for (size_t l = 0; l < lengths_.size(); ++l) {
      if ((sequence_tokens_ + token + 1) % lengths_[l] != 0) continue;
      CountLoads(layer.chunk[l], layer.routing.loads[l]);
      std::fill(layer.chunk[l].begin(), layer.chunk[l].end(), 0);
    }
  }
}

void RoutingStatsBuilder::EndSequence() {
  const uint64_t n_tokens = std::exchange(sequence_tokens_, 0);
  if (n_tokens == 0) return;
  // While not even the shortest length is filled, the whole sequence is in its unfinished chunk.
  const bool keep = n_chunks_[0] == 0 && n_tokens >= partial_tokens_;
  for (Layer& layer : layers_) {
    if (layer.chunk.empty()) continue;
    if (keep && n_tokens > partial_tokens_) layer.partial.assign(shape_.n_experts, {});
    if (keep) CountLoads(layer.chunk[0], layer.partial);
    for (std::vector<uint32_t>& loads : layer.chunk) std::fill(loads.begin(), loads.end(), 0);
  }
  if (!keep) return;
  n_partial_ = n_tokens > partial_tokens_ ? 1 : n_partial_ + 1;
  partial_tokens_ = static_cast<uint32_t>(n_tokens);
}

void RoutingStatsBuilder::EndSource() {
  EndSequence();
  const uint64_t read = std::exchange(source_tokens_, 0);
  if (read == 0) return;
  sources_.push_back(source_name_);
  const uint64_t slices_read = ((read - 1) * kSlices) / source_total_ + 1;
  for (Layer& layer : layers_) {
    if (layer.slice.empty()) continue;
    std::vector<uint64_t> sum(shape_.n_experts);
    for (size_t s = 0; s < kSlices; ++s) {
      std::vector<uint64_t>& half = layer.routing.half_tokens[2 * s < slices_read ? 0 : 1];
      for (size_t expert = 0; expert < sum.size(); ++expert) {
        sum[expert] += layer.slice[s][expert];
        half[expert] += std::exchange(layer.slice[s][expert], 0);
      }
    }
    layer.routing.source_tokens.push_back(std::move(sum));
  }
}

LayerRouting RoutingStatsBuilder::FinishLayer(Layer& layer) const {
  LayerRouting& routing = layer.routing;
  if (routing.tokens.empty()) return std::move(routing);
  std::vector<std::vector<LoadHistogram>> loads;
  for (size_t l = 0; l < lengths_.size(); ++l) {
    if (n_chunks_[l] > 0) loads.push_back(std::move(routing.loads[l]));
  }
  if (loads.empty() && n_partial_ > 0) loads.push_back(std::move(layer.partial));
  routing.loads = std::move(loads);
  for (size_t expert = 0; expert < layer.norms.size(); ++expert) {
    const auto tokens = static_cast<double>(routing.tokens[expert]);
    routing.mean_output_norm.push_back(tokens > 0 ? layer.norms[expert] / tokens : 0);
  }
  return std::move(routing);
}

RoutingCounts RoutingStatsBuilder::Finish() && {
  EndSource();
  RoutingCounts counts;
  RoutingStats& stats = counts.stats;
  stats.n_layers = static_cast<uint32_t>(layers_.size());
  stats.n_experts = shape_.n_experts;
  stats.top_k = shape_.top_k;
  stats.n_tokens = n_tokens_;
  stats.sources = std::move(sources_);
  for (size_t l = 0; l < lengths_.size(); ++l) {
    if (n_chunks_[l] == 0) {
      counts.unfilled.push_back(lengths_[l]);
    } else {
      stats.chunk_tokens.push_back(lengths_[l]);
      counts.n_chunks.push_back(n_chunks_[l]);
    }
  }
  if (stats.chunk_tokens.empty() && n_partial_ > 0) {
    counts.made_up_length = true;
    stats.chunk_tokens.push_back(partial_tokens_);
    counts.n_chunks.push_back(n_partial_);
  }
  for (Layer& layer : layers_) stats.layers.push_back(FinishLayer(layer));
  return counts;
}

}  // namespace npumoe
