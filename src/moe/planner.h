// SPDX-License-Identifier: Apache-2.0
// The planner: a pure function of model, routing statistics and hardware description.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "moe/plan.h"
#include "moe/routing_stats.h"
#include "npu/spec.h"
#include "npumoe/go_on.h"

namespace npumoe {

struct PlanRequest {
  uint32_t chunk_tokens = 256;
  uint32_t moe_batch_tokens = 4096;
  uint32_t prompt_tokens = 4096;  // longest prompt the attention buckets cover
  Objective objective = Objective::kTime;
  Placement placement = Placement::kOurs;
  std::optional<PrefillOrder> order;  // of kOurs: layer-major or wavefront, nothing for whichever is better; else unused
  OverflowMode mode = OverflowMode::kExact;
  uint32_t n_tiers = 3;
  WeightFormat expert_weights = WeightFormat::kFp16, attention_weights = WeightFormat::kFp16;
  bool names_stats = true;  // the plan bears their hash, which of a large model takes as long as a plan; false: it is empty
};

struct PlanWithReasons {
  Plan plan;
  std::vector<std::string> reasons;  // `--explain`: one line a decision, in layer order
  size_t n_programs = 0, program_bytes = 0;
  double load_seconds = 0;  // of loading programs for every batch, because not all stay loaded; hidden or not
};

// 32 hex digits over all of the statistics: what a plan was made from.
std::string StatsHash(const RoutingStats& stats);

// Fails (kUnsupported) when not even one expert fits a program, naming the limit, and with kCancelled soon after `go_on`,
// asked at least once a layer, said no. `stats` may be of any chunk lengths; experts never seen keep a place.
Result<PlanWithReasons> MakePlan(const ModelConfig& config, const RoutingStats& stats, const NpuSpec& spec,
                                 const PlanRequest& request, const GoOnFn& go_on = {});

// The file's bytes per weight that the planner assumes for experts on the CPU (Q8_0: 34 bytes for 32 weights), since
// ModelConfig does not know them; the runtime chooses with the real ones.
inline constexpr double kAssumedFileBytesPerWeight = 34.0 / 32;

// Expected cost of one layer's MoE part for one batch, in seconds and joules, under the calibrated load distributions:
// the function that MakePlan minimises. Pure; used by tests to enumerate alternatives. The mean over 16 load scenarios
// (see LoadScenarios in layer_cost.h) of what ChooseRun makes of each.
struct LayerCost {
  double npu_seconds = 0, cpu_seconds = 0, joules = 0;
  double attention_seconds = 0;  // in npu_seconds: of the other half of the batch, in a wavefront; its joules are not here
  double load_seconds = 0, load_joules = 0;  // of loading all its groups once; in none of the others
  double expected_overflow_rows = 0, padded_rows = 0;
  double longer_seconds = 0;  // in a wavefront: the longer side of every run, which are not alike
  double Seconds() const { return std::max({npu_seconds, cpu_seconds, longer_seconds}); }
};
LayerCost ExpectedLayerCost(const ModelConfig& config, const LayerRouting& routing, size_t chunk_index,
                            const LayerPlan& layer, const NpuSpec& spec, WeightFormat format, bool per_run_capacity,
                            double joule_price = 0);

}  // namespace npumoe
