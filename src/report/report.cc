// SPDX-License-Identifier: Apache-2.0
#include "npumoe/report.h"

#include <fmt/format.h>

#include <set>

#include "base/check.h"
#include "report/comparison.h"
#include "report/figures.h"

namespace npumoe {
namespace {

constexpr size_t kMaxModels = 16;  // longer pages nobody reads

Status CheckModels(const std::vector<std::string>& models) {
  if (models.empty() || models.size() > kMaxModels) {
    return MakeError(Code::kInvalidArgument, "{} models: wanted 1 to {}", models.size(), kMaxModels);
  }
  std::set<std::string> seen;
  for (const std::string& model : models) {
    if (!seen.insert(model).second) return MakeError(Code::kInvalidArgument, "model {}: named twice", model);
  }
  return Ok{};
}

}  // namespace

Result<std::string> MakeReport(const ReportOptions& o, const ProgressFn& progress) {
  NM_TRY(CheckModels(o.models));
  NM_TRY_VAR(const Simulations simulations, Simulations::Run(o, progress));
  const SimulateReport& any = simulations.all().front().report;
  Page page(fmt::format("Plans for MoE models on {}, simulated", any.npu_title));
  page.Paragraph(fmt::format(
      "Nothing on this page was measured: every bar, cell, zone and point is {}. Nobody of this project has run any "
      "of it on such a machine. What the paper published stands apart, in words, shaded bands and the "
      "table below, with its source; figures that were read in the paper's abstract are of high confidence, those "
      "known from summaries of it only of medium or low.",
      SettingText(o, simulations)));
  page.Paragraph(
      "Placements: 'cpu' computes everything on the CPU; 'naive' the experts on the NPU with a graph each; 'anemll' "
      "attention on the "
      "NPU; 'base' both on the NPU with a graph an expert; 'tiers' three capacities; 'tiers+groups' experts of a tier "
      "in "
      "one graph; 'all' is the paper's plan with cold experts on the CPU; 'ours' runs a layer's experts once for a "
      "whole "
      "MoE batch, "
      "chooses capacities after the router has spoken, and drops nothing.");
  AddPlacementBars(o, simulations, page);
  AddAblation(o, simulations, page);
  AddShares(o, simulations, page);
  AddMaps(o, simulations, page);
  AddTimeLines(o, simulations, page);
  AddPareto(o, simulations, page);
  page.Heading("What the paper published, and what the same plans come to here");
  page.Put(CompareWithPublished(o, simulations));
  return std::move(page).Take();
}

}  // namespace npumoe
