// SPDX-License-Identifier: Apache-2.0
// What a plan's programs cost for a batch of any length, and from which length on two halves of it are worth it.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "moe/plan.h"
#include "moe/plan_cost.h"
#include "moe/planner.h"
#include "moe/routing_stats.h"
#include "moe/run_choice.h"
#include "npu/spec.h"

namespace npumoe {

// What both sides have to do while the experts of `n_tokens` run: the shared expert, and with `other_tokens` > 0 the
// attention of the batch's other half, `attention_seconds` of the NPU, and adding what comes out of the experts.
RunOption BesideExperts(const ModelConfig& config, const NpuSpec& spec, uint32_t n_tokens, double attention_seconds,
                        uint32_t other_tokens);

// Expected cost of a prompt's first batch when it has `n_tokens`: as one or in halves, as FirstHalf says. Fails as
// LoadsOf does.
Result<PlanCost> ExpectedBatchCost(const ModelConfig& config, const RoutingStats& stats, const NpuSpec& spec,
                                   const Plan& plan, uint32_t n_tokens);

// Time has its price: more than kMostWavefrontEnergy times the energy of `whole` is not spent on it.
bool IsFrugal(Objective objective, const PlanCost& halves, const PlanCost& whole);
// Whether the objective likes a batch better in two halves, where as one it costs `whole`.
bool BetterInHalves(Objective objective, const PlanCost& halves, const PlanCost& whole);
// What the objective makes small.
double Worth(const PlanCost& cost, Objective objective);

// What a wavefront may spend to be faster, when the objective is time and nobody asked for it by name: the CPU's work
// is the dearest there is, and it would double some models' energy for a seventh of the time.
inline constexpr double kMostWavefrontEnergy = 1.25;

// Plan::whole_tokens of a wavefront: batches of fewer chunks are priced from the full one down, for as long as two
// halves are better than one batch of the same programs. Asks `go_on` once per length; kCancelled when it says no.
Result<uint32_t> WholeTokens(const ModelConfig& config, const RoutingStats& stats, const NpuSpec& spec,
                             const Plan& plan, const GoOnFn& go_on);

}  // namespace npumoe
