// SPDX-License-Identifier: Apache-2.0
// Plans of an opened model: made from options, or read from a file that may be stale or hostile.
#pragma once

#include <string>
#include <string_view>

#include "model/weights.h"
#include "moe/plan.h"
#include "moe/planner.h"
#include "moe/routing_stats.h"
#include "npu/spec.h"
#include "npumoe/plan.h"

namespace npumoe {

// Names of the files beside a model; see SidecarPath.
inline constexpr std::string_view kPlanFile = "plan.json", kStatsFile = "routing_stats.json";

// The options as the planner takes them; formats that are to be chosen stay fp16 (see weight_choice.h).
// kInvalidArgument names the option and lists the known names. `options.npu` is not looked at.
Result<PlanRequest> ParsePlanOptions(const PlanOptions& options);

// "m2-max" or "sim:m2-max". kNotFound lists the known names.
Result<const NpuSpec*> FindSimulatedNpu(std::string_view name);

// The plan in `text`, which CheckPlan has passed and which asks for no shape beyond the model's context and the spec's
// axes. Fails with the reason when it was made for another model, for other numbers of this NPU, for another NPU
// (PlannedNpu tells before), or, with `stats`, from other statistics. `name` is the subject of messages.
Result<Plan> LoadPlan(std::string_view text, std::string_view name, const Model& model, const NpuSpec& spec,
                      const RoutingStats* stats);

// Without `stats` experts count as equally popular, and the plan says so (`calibrated`). Fails with kInvalidArgument
// when the statistics are of another model, and as MakePlan.
Result<PlanWithReasons> MakePlanFor(const Model& model, const RoutingStats* stats, const NpuSpec& spec,
                                    const PlanRequest& request, const GoOnFn& go_on = {});

}  // namespace npumoe
