// SPDX-License-Identifier: Apache-2.0
// What calibration sees of a forward pass: choices of the routers, norms of the experts' outputs, ranges of
// activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/compute.h"
#include "model/config.h"
#include "moe/dispatch.h"
#include "moe/routing_stats.h"
#include "tensor/tensor.h"

namespace npumoe {

// Filled by one Forward::Run at a time; the owner takes what it needs between runs. A run that failed or was stopped
// leaves the first layers only: forget it with Clear. Borrows config and compute. One thread at a time.
class RoutingObserver {
 public:
  RoutingObserver(const ModelConfig& config, Compute& compute);

  // Of the last run, for each layer; a dense layer has no choices and no norms.
  struct Layer {
    std::vector<uint32_t> choices;     // [tokens, top_k]
    std::vector<double> output_norms;  // [n_experts] L2 norms of unweighted outputs, summed over the expert's tokens
    ActivationRange range;
  };
  const std::vector<Layer>& layers() const { return layers_; }
  void Clear();  // before each run

  // Called by the forward pass, layer by layer.
  void BeginLayer(uint32_t layer) { layer_ = layer; }
  // Widens a stage of the current layer's range by the largest absolute value.
  void See(float ActivationRange::*stage, ConstMatView values);
  void SeeChoices(std::span<const uint32_t> choices);               // [tokens, top_k]
  void SeeOutputs(const Dispatch& dispatch, ConstMatView outputs);  // [slots, dim], for their norms

 private:
  Compute& compute_;
  uint32_t layer_ = 0;
  std::vector<Layer> layers_;
  std::vector<double> row_values_;  // scratch: one result a row, so that threads do not meet
};

}  // namespace npumoe
