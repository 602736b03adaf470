// SPDX-License-Identifier: Apache-2.0
#include "report/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "report/svg.h"

namespace npumoe {
namespace {

constexpr std::string_view kBaselines[] = {"cpu", "naive", "anemll"};
constexpr std::string_view kPaperPlan = "all";

struct Range {
  double low = 0, high = 0;
  bool any = false;
  void Add(double value) {
    low = any ? std::min(low, value) : value;
    high = any ? std::max(high, value) : value;
    any = true;
  }
};

std::string RangeText(double low, double high, std::string_view unit, bool exact) {
  const auto text = [&](double v) { return exact ? fmt::format("{:g}", v) : ThreeDigits(v); };
  const std::string_view space = unit == "%" ? " " : "";
  if (text(low) == text(high)) return fmt::format("{}{}{}", text(low), space, unit);
  return fmt::format("{} to {}{}{}", text(low), text(high), space, unit);
}

using Measure = std::function<double(const SimulatedPlacement&)>;

double Seconds(const SimulatedPlacement& p) { return p.ttft_seconds.mean; }
double Joules(const SimulatedPlacement& p) { return p.joules_per_token.mean; }
double CpuSeconds(const SimulatedPlacement& p) { return p.cpu_seconds.mean; }
double ExpertSeconds(const SimulatedPlacement& p) { return StageSeconds(p, "experts"); }

class Comparison {
 public:
  Comparison(const ReportOptions& o, const Simulations& simulations) : o_(o), simulations_(simulations) {}

  // What belongs beside the figure of `key`, or why nothing does.
  std::string Simulated(std::string_view key) const {
    if (key == "latency_gain" || key == "latency_peak") return Gains(Seconds);
    if (key == "energy_gain" || key == "energy_peak") return Gains(Joules);
    if (key == "cpu_gain") return Gains(CpuSeconds);
    if (key == "expert_gain") return Ratio("naive", kPaperPlan, ExpertSeconds);
    if (key == "ablation_tiers_latency") return Ratio("base", "tiers", Seconds);
    if (key == "ablation_groups_latency") return Ratio("base", "tiers+groups", Seconds);
    if (key == "ablation_groups_energy") return Ratio("base", "tiers+groups", Joules);
    if (key == "ablation_all_latency") return Ratio("base", kPaperPlan, Seconds);
    if (key == "grouping_cut") return GroupingCut();
    if (key == "padding" || key == "padding_mean") return Shares([](const auto& p) { return p.padding.mean; });
    if (key == "dropped") return Shares([](const auto& p) { return p.dropped.mean; });
    return "decode is not simulated";
  }

 private:
  const SimulateReport& Of(const std::string& model) const {
    return simulations_.Of(model, o_.simulate.chunk_tokens, o_.simulate.expert_weights);
  }

  std::string Gains(const Measure& measure) const {
    std::string text;
    for (const std::string_view baseline : kBaselines) {
      text += fmt::format("{}{} against {}", text.empty() ? "" : "; ", Ratio(baseline, kPaperPlan, measure), baseline);
    }
    return text;
  }

  std::string Ratio(std::string_view before, std::string_view after, const Measure& measure) const {
    Range range;
    for (const std::string& model : o_.models) {
      const SimulatedPlacement* a = Find(Of(model), before);
      const SimulatedPlacement* b = Find(Of(model), after);
      if (a && b && measure(*b) > 0) range.Add(measure(*a) / measure(*b));
    }
    return range.any ? RangeText(range.low, range.high, "x", false) : "nothing to compare";
  }

  std::string GroupingCut() const {
    Range range;
    for (const std::string& model : o_.models) {
      const SimulatedPlacement* tiers = Find(Of(model), "tiers");
      const SimulatedPlacement* groups = Find(Of(model), "tiers+groups");
      if (tiers && groups && ExpertSeconds(*tiers) > 0)
        range.Add(100 * (1 - ExpertSeconds(*groups) / ExpertSeconds(*tiers)));
    }
    return range.any ? RangeText(range.low, range.high, "%", false) + " of the experts' time" : "nothing to compare";
  }

  // Over all models and chunk lengths, for the plan with and without residency.
  std::string Shares(const Measure& measure) const {
    std::string text;
    for (const std::string_view placement : {std::string_view("tiers+groups"), kPaperPlan}) {
      Range range;
      for (const std::string& model : o_.models) {
        for (const uint32_t chunk : simulations_.chunks()) {
          const SimulatedPlacement* p = Find(simulations_.Of(model, chunk, o_.simulate.expert_weights), placement);
          if (p && p->on_npu.mean > 0) range.Add(100 * measure(*p));
        }
      }
      if (!range.any) continue;
      text +=
          fmt::format("{}{} in {}", text.empty() ? "" : "; ", RangeText(range.low, range.high, "%", false), placement);
    }
    return text.empty() ? "no experts on the NPU" : text;
  }

  const ReportOptions& o_;
  const Simulations& simulations_;
};

}  // namespace

std::string ValueText(const PublishedFigure& figure) { return RangeText(figure.low, figure.high, figure.unit, true); }

const PublishedFigure& Published(std::string_view key) {
  const auto figures = PublishedFigures();
  const auto found = std::find_if(figures.begin(), figures.end(), [&](const auto& f) { return f.key == key; });
  NM_CHECK(found != figures.end());
  return *found;
}

double StageSeconds(const SimulatedPlacement& placement, std::string_view stage) {
  for (const SimulatedStage& s : placement.stages) {
    if (s.name == stage) return s.seconds;
  }
  return 0;
}

Table CompareWithPublished(const ReportOptions& o, const Simulations& simulations) {
  Table table;
  const std::string npu = simulations.all().empty() ? "" : simulations.all()[0].report.npu;
  table.head = {"quantity", "published",  "setting",
                "source",   "confidence", "simulated on " + npu + ", setting of this page"};
  const Comparison comparison(o, simulations);
  for (const PublishedFigure& f : PublishedFigures()) {
    table.rows.push_back({std::string(f.what), ValueText(f), std::string(f.setting), std::string(f.source),
                          std::string(f.confidence), comparison.Simulated(f.key)});
  }
  return table;
}

}  // namespace npumoe
