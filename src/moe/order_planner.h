// SPDX-License-Identifier: Apache-2.0
// A plan in one given order of prefill; planner.h chooses between orders.
#pragma once

#include "model/config.h"
#include "moe/plan.h"
#include "moe/plan_cost.h"
#include "moe/planner.h"
#include "moe/routing_stats.h"
#include "npu/spec.h"

namespace npumoe {

struct PlanOfOrder {
  PlanWithReasons made;
  PlanCost cost;     // of one batch
  bool fits = true;  // the device can hold at once what the order needs
};

// Request and statistics must have been checked. `joule_price`: seconds that a joule is worth when the objective is
// time; the others find theirs. Fails like MakePlan.
Result<PlanOfOrder> PlanInOrder(const ModelConfig& config, const RoutingStats& stats, const NpuSpec& spec,
                                const PlanRequest& request, PrefillOrder order, double joule_price,
                                const GoOnFn& go_on);

}  // namespace npumoe
