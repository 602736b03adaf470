// SPDX-License-Identifier: Apache-2.0
// One prefill of a plan on a spec without weights: the runtime's order of work, its choice per layer, its counts.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "moe/plan.h"
#include "npu/spec.h"
#include "simulate/routing_source.h"

namespace npumoe {

// Simulated seconds and joules, from the first token of the prompt to the logits of its last.
struct PrefillTimes {
  double attention = 0;  // its programs, or the CPU's share of them; copies of inputs and outputs
  double router = 0;     // top-k and counting
  double experts = 0;    // the longer of both sides
  double pack = 0;       // packing and unpacking that nothing hid
  double scatter = 0;    // adding weighted outputs
  double load = 0;       // waiting for programs
  double output = 0;     // logits of the last token
  double Seconds() const { return attention + router + experts + pack + scatter + load + output; }

  double floors = 0;    // of all dispatches; part of attention and experts
  double npu_busy = 0;  // device
  double cpu_busy = 0;  // computing, packing, adding; waiting is not work
  double joules = 0;
  double bound = 0;  // Seconds() if every layer's rows were split between the sides without any rest
};

struct PrefillRows {
  uint64_t assigned = 0;  // tokens * top_k over all layers
  uint64_t npu = 0, padded = 0;
  uint64_t dropped = 0;  // above a capacity and computed nowhere (prune)
  uint64_t spilled = 0;  // above a capacity and computed on the CPU
  uint64_t cpu = 0;      // of experts that ran on the CPU
};

// What happened in one layer of one chunk or batch, for drawings; seconds from the layer's begin.
struct LayerZone {
  const char* track = "";  // "npu", "cpu", "pack"
  const char* name = "";
  double begin = 0, end = 0;
};

struct SimulatedPrefill {
  PrefillTimes times;
  PrefillRows rows;
  uint64_t n_dispatches = 0;     // of expert groups
  std::vector<LayerZone> zones;  // of `drawn_layer` in the first chunk or batch
};

// `prompt.step_tokens` divides the plan's chunk. Rows beyond a capacity are dropped when the plan's mode is kPrune,
// else computed by the CPU. Programs that do not all fit are loaded as ExpectedLoads says.
SimulatedPrefill SimulatePrefill(const ModelConfig& config, const Plan& plan, const NpuSpec& spec,
                                 const RoutedPrompt& prompt, uint32_t drawn_layer);

}  // namespace npumoe
