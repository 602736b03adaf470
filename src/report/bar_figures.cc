// SPDX-License-Identifier: Apache-2.0
// The figures that are bars.
#include <fmt/format.h>

#include <algorithm>

#include "report/bar_chart.h"
#include "report/comparison.h"
#include "report/figures.h"
#include "report/svg.h"

namespace npumoe {
namespace {

struct Quantity {
  const char *title, *unit;
  double scale;
  SimulatedValue SimulatedPlacement::*value;
};

constexpr Quantity kTime{"time to the first token", "seconds", 1, &SimulatedPlacement::ttft_seconds};
constexpr Quantity kEnergy{"energy", "mJ per prompt token", 1e3, &SimulatedPlacement::joules_per_token};
constexpr Quantity kCpu{"CPU busy", "seconds", 1, &SimulatedPlacement::cpu_seconds};

// One bar a placement, with its ratio to the one called `unit_of`: how many times as much, or as little.
BarPanel PanelOf(const SimulateReport& report, const Quantity& quantity, const std::vector<std::string>& placements,
                 std::string_view unit_of, bool as_gain) {
  BarPanel panel{ShortName(report.model) + ": " + quantity.title, quantity.unit, {}, 0, 0, 0};
  const SimulatedPlacement* unit = Find(report, unit_of);
  const double whole = unit ? (unit->*quantity.value).mean : 0;
  for (const std::string& name : placements) {
    const SimulatedPlacement* p = Find(report, name);
    if (!p) continue;
    const SimulatedValue& value = p->*quantity.value;
    std::string text = ThreeDigits(quantity.scale * value.mean);
    const double ratio = as_gain ? whole / value.mean : value.mean / whole;
    if (whole > 0 && value.mean > 0 && name != unit_of) text += fmt::format(" ({}x)", ThreeDigits(ratio));
    panel.bars.push_back({name, quantity.scale * value.mean, quantity.scale * value.deviation, text, "",
                          std::string(ColourOf(name)), name == "ours"});
  }
  return panel;
}

Table NumbersOf(const ReportOptions& o, const Simulations& simulations, const std::vector<std::string>& placements) {
  Table table{{"model", "placement", "TTFT s", "+-", "mJ/token", "+-", "CPU busy s", "NPU busy s", "padding", "dropped",
               "gap to bound"},
              {}};
  for (const std::string& model : o.models) {
    for (const std::string& name : placements) {
      const SimulatedPlacement* p = Find(ReportOf(o, simulations, model), name);
      if (!p) continue;
      const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
      table.rows.push_back(
          {model, name, fmt::format("{:.3f}", p->ttft_seconds.mean), fmt::format("{:.3f}", p->ttft_seconds.deviation),
           fmt::format("{:.2f}", 1e3 * p->joules_per_token.mean),
           fmt::format("{:.2f}", 1e3 * p->joules_per_token.deviation), fmt::format("{:.3f}", p->cpu_seconds.mean),
           fmt::format("{:.3f}", p->npu_seconds.mean), p->on_npu.mean > 0 ? percent(p->padding.mean) : "-",
           percent(p->dropped.mean), percent(std::max(p->gap.mean, 0.0))});
    }
  }
  return table;
}

std::string PublishedText(std::string_view key) {
  const PublishedFigure& f = Published(key);
  return fmt::format("{} {} (published; {}; confidence {})", f.what, ValueText(f), f.source, f.confidence);
}

}  // namespace

void AddPlacementBars(const ReportOptions& o, const Simulations& simulations, Page& page) {
  const std::vector<std::string> placements{"cpu", "naive", "anemll", "all", "ours"};
  std::vector<std::vector<BarPanel>> panels;
  for (const std::string& model : o.models) {
    auto& row = panels.emplace_back();
    for (const Quantity& quantity : {kTime, kEnergy, kCpu}) {
      row.push_back(PanelOf(ReportOf(o, simulations, model), quantity, placements, "all", false));
    }
  }
  page.Heading("Time, energy and CPU");
  page.Figure({DrawBars(panels, "Time, energy and CPU time of five placements")},
              fmt::format("All bars are means, {}. 'all' is the paper's whole plan (npumoe there); in brackets how "
                          "many times as much as "
                          "'all'. The paper counts CPU cycles, this page seconds in which the CPU is busy. The paper's "
                          "measured ratios of its baselines to its plan, not drawn here: {}; {}; {}.",
                          SettingText(o, simulations), PublishedText("latency_gain"), PublishedText("energy_gain"),
                          PublishedText("cpu_gain")),
              NumbersOf(o, simulations, placements));
}

void AddAblation(const ReportOptions& o, const Simulations& simulations, Page& page) {
  const std::vector<std::string> placements{"base", "tiers", "tiers+groups", "all", "ours"};
  std::vector<std::vector<BarPanel>> panels;
  const auto note = [](Bar& bar, std::string_view key) { bar.note = "paper: " + ValueText(Published(key)); };
  for (const std::string& model : o.models) {
    auto& row = panels.emplace_back();
    const SimulateReport& report = ReportOf(o, simulations, model);
    row.push_back(PanelOf(report, kTime, placements, "base", true));
    row.push_back(PanelOf(report, kEnergy, placements, "base", true));
    for (Bar& bar : row[0].bars) {
      if (bar.label == "tiers") note(bar, "ablation_tiers_latency");
      if (bar.label == "tiers+groups") note(bar, "ablation_groups_latency");
      if (bar.label == "all") note(bar, "ablation_all_latency");
    }
    for (Bar& bar : row[1].bars) {
      if (bar.label == "tiers+groups") note(bar, "ablation_groups_energy");
    }
  }
  page.Heading("The paper's steps");
  page.Figure(
      {DrawBars(panels, "Time and energy of the paper's steps and of ours")},
      fmt::format(
          "All bars are means, {}. In brackets how many times less than 'base' (one graph an expert, every capacity a "
          "whole chunk). The pale words say what the paper published for that step ({}, confidence {}; its model "
          "and prompt are not known): they are no part of the bars. The paper's steps drop assignments, 'ours' "
          "does not.",
          SettingText(o, simulations), Published("ablation_tiers_latency").source,
          Published("ablation_tiers_latency").confidence),
      NumbersOf(o, simulations, placements));
}

void AddShares(const ReportOptions& o, const Simulations& simulations, Page& page) {
  std::vector<std::vector<BarPanel>> panels;
  Table numbers{{"model", "chunk", "placement", "padding", "dropped", "rows on the NPU"}, {}};
  const PublishedFigure &padding = Published("padding"), &dropped = Published("dropped");
  for (const std::string& model : o.models) {
    BarPanel pads{
        ShortName(model) + ": padding", "% of the rows that programs compute", {}, padding.low, padding.high, 100};
    BarPanel drops{ShortName(model) + ": dropped", "% of all assignments", {}, dropped.low, dropped.high, 25};
    for (const uint32_t chunk : simulations.chunks()) {
      bool first = true;
      for (const char* name : {"tiers+groups", "all", "ours"}) {
        const SimulatedPlacement* p = Find(simulations.Of(model, chunk, o.simulate.expert_weights), name);
        if (!p) continue;
        const bool any = p->on_npu.mean > 0;
        const auto bar = [&](const SimulatedValue& value, bool known) {
          return Bar{fmt::format("{} {}", chunk, name),
                     100 * value.mean,
                     100 * value.deviation,
                     known ? fmt::format("{:.1f}", 100 * value.mean) : "nothing on the NPU",
                     "",
                     std::string(ColourOf(name)),
                     first};
        };
        pads.bars.push_back(bar(p->padding, any));
        drops.bars.push_back(bar(p->dropped, true));
        numbers.rows.push_back({model, fmt::format("{}", chunk), name, fmt::format("{:.1f} %", 100 * p->padding.mean),
                                fmt::format("{:.1f} %", 100 * p->dropped.mean),
                                fmt::format("{:.1f} %", 100 * p->on_npu.mean)});
        first = false;
      }
    }
    panels.push_back({std::move(pads), std::move(drops)});
  }
  page.Heading("Padding and dropped assignments");
  page.Figure(
      {DrawBars(panels, "Padding and dropped assignments by chunk length")},
      fmt::format(
          "All bars are means, {}, except that the chunk is the number before each placement. The shaded bands are no "
          "simulation: they are what the paper published: {}; {}. 'ours' drops nothing: what is above a "
          "capacity the CPU computes.",
          SettingText(o, simulations), PublishedText("padding"), PublishedText("dropped")),
      numbers);
}

}  // namespace npumoe
