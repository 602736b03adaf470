// SPDX-License-Identifier: Apache-2.0
// What a whole plan costs: its layers one after the other, and the programs that have to be loaded again for every
// batch because not all fit at once.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "moe/attention_plan.h"
#include "moe/plan.h"
#include "moe/planner.h"
#include "npu/spec.h"

namespace npumoe {

// One layer's programs, attention's first, and how long the layer runs when they are there.
struct LayerPrograms {
  std::vector<size_t> bytes;     // [programs]
  bool attention_on_npu = true;  // the first is attention's
  double attention_seconds = 0, expert_seconds = 0;  // the first and the second half of the layer in a wavefront
};

struct LoadCost {
  bool resident = true;                       // all programs stay loaded: nothing below
  double load_seconds = 0, wait_seconds = 0;  // mean of a batch: loading, and what of it nothing runs beside
};

// Plays the runtime's rule over a few batches. Before the first, layers are loaded while there is room. When a layer
// starts, the next one's programs are loaded beside it, one after the other, after what this layer still lacks;
// whatever is needed last makes room, so that a part of the layers stays loaded. Attention waits for its program,
// experts for all of theirs. Loading does not slow down what runs beside it (assumed: both read memory, neither fills
// it). In a wavefront the next layer's programs are loaded only when a layer's own experts start: until then those of the
// layer before are still needed.
LoadCost ExpectedLoads(std::span<const LayerPrograms> layers, const NpuSpec& spec, PrefillOrder order);

struct PlanCost {
  double seconds = 0, joules = 0;  // of one batch, loading included
  LoadCost loads;
  size_t n_programs = 0, program_bytes = 0;
};

// Whether the programs of any two layers in a row can be loaded at once: a wavefront is in two layers at a time.
bool NeighboursFit(std::span<const LayerPrograms> layers, const NpuSpec& spec);

// A layer's programs, without times.
LayerPrograms ProgramsOf(const ModelConfig& config, const Plan& plan, uint32_t layer, const LayerPlan& layer_plan);

// `plan` says order and formats; `layers` stand in for its layers. attention, experts: [n_layers] costs of one batch.
PlanCost ExpectedPlanCost(const ModelConfig& config, const Plan& plan, std::span<const LayerPlan> layers,
                          std::span<const AttentionCost> attention, std::span<const LayerCost> experts,
                          const NpuSpec& spec);

}  // namespace npumoe
