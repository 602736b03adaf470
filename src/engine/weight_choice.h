// SPDX-License-Identifier: Apache-2.0
// Plans whose weight formats are chosen by their measured errors.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/weight_error.h"
#include "format/tokenizer.h"
#include "moe/planner.h"
#include "npumoe/plan.h"

namespace npumoe {

inline constexpr std::string_view kAutoWeights = "auto";

// A less exact format must make the objective smaller by this much: where weights are not what a plan waits for, fp16
// stays.
inline constexpr double kWorthwhileGain = 0.01;

bool ChoosesWeights(const PlanOptions& options);  // experts, attention or both

std::vector<int32_t> SampleTokens(const Tokenizer& tokenizer, const PlanOptions& options);

// MakePlanFor with the formats that `options` leaves open chosen: first that of the experts, then that of attention,
// each by plans made with all formats whose error is within options.max_weight_error. fp16 is always allowed. `errors`
// must be given when ChoosesWeights; its figures become reasons.
Result<PlanWithReasons> MakePlanWithWeights(const Model& model, const RoutingStats* stats, const NpuSpec& spec,
                                            PlanRequest request, const PlanOptions& options, const WeightErrors* errors,
                                            const GoOnFn& go_on = {});

std::vector<WeightErrorRow> ErrorRows(const WeightErrors& errors);

}  // namespace npumoe
