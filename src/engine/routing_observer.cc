// SPDX-License-Identifier: Apache-2.0
#include "engine/routing_observer.h"

#include <algorithm>
#include <cmath>

namespace npumoe {

RoutingObserver::RoutingObserver(const ModelConfig& config, Compute& compute)
    : compute_(compute), layers_(config.n_layers) {
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    if (config.IsMoeLayer(layer)) layers_[layer].output_norms.resize(config.n_experts);
  }
}

void RoutingObserver::Clear() {
  for (Layer& layer : layers_) {
    layer.choices.clear();
    std::fill(layer.output_norms.begin(), layer.output_norms.end(), 0.0);
    layer.range = {};
  }
}

void RoutingObserver::See(float ActivationRange::*stage, ConstMatView values) {
  row_values_.resize(std::max(row_values_.size(), values.rows));
  compute_.ForRows(values.rows, [&](size_t row) {
    const float* x = values.Row(row);
    float largest = 0;
    for (size_t i = 0; i < values.cols; ++i) largest = std::max(largest, std::fabs(x[i]));
    row_values_[row] = largest;
  });
  float& seen = layers_[layer_].range.*stage;
  for (size_t row = 0; row < values.rows; ++row) seen = std::max(seen, static_cast<float>(row_values_[row]));
}

void RoutingObserver::SeeChoices(std::span<const uint32_t> choices) {
  layers_[layer_].choices.assign(choices.begin(), choices.end());
}

void RoutingObserver::SeeOutputs(const Dispatch& dispatch, ConstMatView outputs) {
  row_values_.resize(std::max(row_values_.size(), outputs.rows));
  compute_.ForRows(outputs.rows, [&](size_t row) {
    const float* x = outputs.Row(row);
    double sum = 0;
    for (size_t i = 0; i < outputs.cols; ++i) sum += double{x[i]} * x[i];
    row_values_[row] = std::sqrt(sum);
  });
  std::vector<double>& norms = layers_[layer_].output_norms;
  for (size_t expert = 0; expert < norms.size(); ++expert) {
    for (size_t slot = dispatch.expert_begin[expert]; slot < dispatch.expert_begin[expert + 1]; ++slot) {
      norms[expert] += row_values_[slot];
    }
  }
}

}  // namespace npumoe
