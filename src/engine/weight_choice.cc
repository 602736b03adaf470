// SPDX-License-Identifier: Apache-2.0
#include "engine/weight_choice.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "engine/plan_document.h"

namespace npumoe {
namespace {

double ScoreOf(const Plan& plan) {
  switch (plan.objective) {
    case Objective::kEnergy:
      return plan.expected_joules;
    case Objective::kEnergyDelay:
      return plan.expected_joules * plan.expected_seconds;
    case Objective::kTime:
      break;
  }
  return plan.expected_seconds;
}

using Errors = std::array<RelativeError, kWeightFormatCount>;

// Makes a plan with each allowed format in request.*field and keeps the best one's; says what was weighed.
Result<std::string> Choose(const Model& model, const RoutingStats* stats, const NpuSpec& spec, PlanRequest& request,
                           WeightFormat PlanRequest::*field, const Errors& errors, double max_error,
                           const GoOnFn& go_on) {
  // The exact first, so that of equals the most exact is taken.
  std::vector<size_t> order(kWeightFormatCount);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return kWeightFormats[a] == WeightFormat::kFp16 ||
           (kWeightFormats[b] != WeightFormat::kFp16 && errors[a].rms < errors[b].rms);
  });
  double best = 0;
  WeightFormat chosen = WeightFormat::kFp16;
  std::string weighed;
  for (const size_t i : order) {
    const WeightFormat format = kWeightFormats[i];
    std::string_view result = "too inexact";
    if (format == WeightFormat::kFp16 || errors[i].rms <= max_error) {
      request.*field = format;
      NM_TRY_VAR(const PlanWithReasons made, MakePlanFor(model, stats, spec, request, go_on));
      const double score = ScoreOf(made.plan);
      const bool better = format == WeightFormat::kFp16 || score < best * (1 - kWorthwhileGain);
      weighed += fmt::format("{}{} {:.4f} s and {:.4f} J", weighed.empty() ? "" : ", ", ToString(format),
                             made.plan.expected_seconds, made.plan.expected_joules);
      if (better) best = score, chosen = format;
      continue;
    }
    weighed += fmt::format(", {} {}", ToString(format), result);
  }
  request.*field = chosen;
  return fmt::format("{}: {} (simulated, {}); a less exact format must save {:.0f} %, and its error be at most {:.3g}",
                     ToString(chosen), weighed, spec.name, 100 * kWorthwhileGain, max_error);
}

}  // namespace

bool ChoosesWeights(const PlanOptions& options) {
  return options.expert_weights == kAutoWeights || options.attention_weights == kAutoWeights;
}

std::vector<int32_t> SampleTokens(const Tokenizer& tokenizer, const PlanOptions& options) {
  const std::string text = options.sample_text.empty() ? std::string(kSampleText) : options.sample_text;
  return tokenizer.Encode(text, {.add_special = true});
}

Result<PlanWithReasons> MakePlanWithWeights(const Model& model, const RoutingStats* stats, const NpuSpec& spec,
                                            PlanRequest request, const PlanOptions& options, const WeightErrors* errors,
                                            const GoOnFn& go_on) {
  std::vector<std::string> reasons;
  if (errors != nullptr) {
    for (const WeightErrorRow& row : ErrorRows(*errors)) {
      reasons.push_back(fmt::format(
          "weights as {}: relative error of experts' outputs {:.2g} (worst {:.2g}; gate and up alone {:.2g}, "
          "down alone {:.2g}), of attention's {:.2g} (worst {:.2g}), measured on {} tokens in {} layers",
          row.format, row.experts, row.worst_expert, row.gate_up, row.down, row.attention, row.worst_attention,
          errors->n_tokens, errors->layers.size()));
    }
  }
  NM_CHECK(errors != nullptr || !ChoosesWeights(options));
  if (options.expert_weights == kAutoWeights && model.config().n_experts > 0) {
    NM_TRY_VAR(const std::string why, Choose(model, stats, spec, request, &PlanRequest::expert_weights, errors->experts,
                                             options.max_weight_error, go_on));
    reasons.push_back("experts' weights are " + why);
  }
  if (options.attention_weights == kAutoWeights) {
    NM_TRY_VAR(const std::string why, Choose(model, stats, spec, request, &PlanRequest::attention_weights,
                                             errors->attention, options.max_weight_error, go_on));
    reasons.push_back("attention's weights are " + why);
  }
  NM_TRY_VAR(PlanWithReasons made, MakePlanFor(model, stats, spec, request, go_on));
  made.reasons.insert(made.reasons.begin(), reasons.begin(), reasons.end());
  return made;
}

std::vector<WeightErrorRow> ErrorRows(const WeightErrors& errors) {
  std::vector<WeightErrorRow> rows;
  for (size_t i = 0; i < kWeightFormatCount; ++i) {
    rows.push_back({std::string(ToString(kWeightFormats[i])), errors.experts[i].rms, errors.gate_up[i].rms,
                    errors.down[i].rms, errors.attention[i].rms, errors.experts[i].worst, errors.attention[i].worst});
  }
  return rows;
}

}  // namespace npumoe
