// SPDX-License-Identifier: Apache-2.0
#include "report/figures.h"

#include <fmt/format.h>

#include "report/heat_map.h"
#include "report/scatter.h"
#include "report/svg.h"
#include "report/time_line.h"

namespace npumoe {
namespace {

constexpr double kNoDrops = 1e-9;  // share of assignments

}  // namespace

std::string SettingText(const ReportOptions& o, const Simulations& simulations) {
  const SimulateReport& report = simulations.all().front().report;
  return fmt::format(
      "simulated on {} ({}): {} prompt tokens, chunk {}, experts' weights {}, attention's {}, routing {}, "
      "{} prompt{}",
      report.npu, report.npu_title, report.prompt_tokens, o.simulate.chunk_tokens, o.simulate.expert_weights,
      o.simulate.attention_weights, report.routing, report.n_seeds, report.n_seeds == 1 ? "" : "s");
}

std::string ShortName(std::string_view model) {
  constexpr size_t kMaxBytes = 28;
  if (model.size() <= kMaxBytes) return std::string(model);
  size_t begin = model.size() - kMaxBytes;
  while (begin < model.size() && (static_cast<unsigned char>(model[begin]) & 0xc0u) == 0x80u)
    ++begin;  // whole characters
  return "..." + std::string(model.substr(begin));
}

void AddMaps(const ReportOptions& o, const Simulations& simulations, Page& page) {
  page.Heading("Popularity of experts and their capacities");
  for (const std::string& model : o.models) {
    const SimulateReport& report = ReportOf(o, simulations, model);
    std::vector<std::string> drawings{
        DrawPopularity(report.popularity, ShortName(model) + ": popularity, first prompt")};
    Table numbers{{"placement", "experts on the NPU", "on the CPU", "programs"}, {}};
    for (const char* name : {"all", "ours"}) {
      const SimulatedPlacement* p = Find(report, name);
      if (!p) continue;
      drawings.push_back(DrawTiers(p->tiers, fmt::format("{}: capacities of {}", ShortName(model), name)));
      size_t on_npu = 0, total = 0;
      for (const auto& layer : p->tiers) {
        for (const uint32_t capacity : layer) on_npu += capacity > 0 ? 1 : 0, ++total;
      }
      numbers.rows.push_back(
          {name, fmt::format("{}", on_npu), fmt::format("{}", total - on_npu), fmt::format("{}", p->n_programs)});
    }
    page.Figure(
        drawings,
        fmt::format("{}: popularity that was drawn, not measured, and what the plans made of it, {}. Capacities of "
                    "'all' are rows of a chunk, those of 'ours' of a MoE batch of {} tokens, the largest of several.",
                    model, SettingText(o, simulations), o.simulate.moe_batch_tokens),
        numbers);
  }
}

void AddTimeLines(const ReportOptions& o, const Simulations& simulations, Page& page) {
  page.Heading("One layer");
  for (const std::string& model : o.models) {
    const SimulateReport& report = ReportOf(o, simulations, model);
    std::vector<TimeBand> bands;
    Table numbers{{"placement", "track", "zone", "begin ms", "end ms"}, {}};
    for (const char* name : {"all", "ours"}) {
      const SimulatedPlacement* p = Find(report, name);
      if (!p) continue;
      const uint32_t tokens = std::min(
          report.prompt_tokens, std::string_view(name) == "ours" ? o.simulate.moe_batch_tokens : report.chunk_tokens);
      double end = 0;
      for (const SimulatedZone& zone : p->zones) {
        end = std::max(end, zone.end);
        numbers.rows.push_back({name, zone.track, zone.name, fmt::format("{:.3f}", 1e3 * zone.begin),
                                fmt::format("{:.3f}", 1e3 * zone.end)});
      }
      bands.push_back({fmt::format("{}, {}: {} tokens in {} ms, {} us a token", ShortName(model), name, tokens,
                                   ThreeDigits(1e3 * end), ThreeDigits(1e6 * end / tokens)),
                       p->zones});
    }
    page.Figure(
        {DrawTimeLine(bands, ShortName(model) + ": one layer by time")},
        fmt::format(
            "{}: the middle layer of the first prompt, {}. 'all' goes chunk by chunk, 'ours' takes a whole MoE batch, "
            "so the scales differ. The CPU's own experts and packing are drawn beside each other and share "
            "the CPU: where both are long, the layer ends when their sum does. Attention's chunks are one "
            "zone, and the first chunk's context is the shortest. In a wavefront the layer runs twice, each half of the "
            "batch beside the attention of the other half.",
            model, SettingText(o, simulations)),
        numbers);
  }
}

void AddPareto(const ReportOptions& o, const Simulations& simulations, Page& page) {
  std::vector<std::string> drawings;
  Table numbers{
      {"model", "point", "placement", "chunk", "experts' weights", "objective", "TTFT s", "mJ/token", "dropped"}, {}};
  for (const std::string& model : o.models) {
    std::vector<ScatterPoint> points;
    std::vector<std::vector<std::string>> rows;
    for (const Simulation& s : simulations.all()) {
      if (s.model != model) continue;
      for (const SimulatedPlacement& p : s.report.placements) {
        const std::string objective = p.placement == "ours" ? s.objective : "-";
        rows.push_back({model, "", p.placement, fmt::format("{}", s.chunk_tokens), s.expert_weights, objective,
                        fmt::format("{:.3f}", p.ttft_seconds.mean),
                        fmt::format("{:.2f}", 1e3 * p.joules_per_token.mean),
                        fmt::format("{:.1f} %", 100 * p.dropped.mean)});
        points.push_back(
            {p.ttft_seconds.mean, p.joules_per_token.mean,
             fmt::format("{}, chunk {}, {}, objective {}: {} s, {} mJ/token, {} dropped", p.placement, s.chunk_tokens,
                         s.expert_weights, objective, rows.back()[6], rows.back()[7], rows.back()[8]),
             std::string(ColourOf(p.placement)), p.dropped.mean < kNoDrops,
             s.expert_weights != o.simulate.expert_weights});
      }
    }
    const std::vector<size_t> exact = ParetoFront(points, true);
    for (size_t i = 0; i < exact.size(); ++i) {
      rows[exact[i]][1] = fmt::format("{}", i + 1);
      numbers.rows.push_back(rows[exact[i]]);
    }
    for (const size_t i : ParetoFront(points, false)) {
      if (points[i].exact) continue;  // is there already
      rows[i][1] = "dashed";
      numbers.rows.push_back(rows[i]);
    }
    drawings.push_back(DrawScatter(points, ShortName(model)));
  }
  drawings.push_back(DrawColours({"cpu", "naive", "anemll", "base", "tiers", "tiers+groups", "all", "ours"}));
  page.Heading("Time against energy");
  const std::string other = o.simulate.expert_weights == "fp16" ? "int8" : "fp16";
  page.Figure(
      drawings,
      fmt::format("Every point is a plan, {}, where chunks are {}; full circles are {} experts, hollow ones {} (of "
                  "'ours', 'naive', "
                  "'tiers+groups' and 'all'); 'ours' in {} is planned for time, for energy and for their product; both "
                  "axes are logarithmic. The solid, numbered line joins the plans that drop nothing and that no "
                  "other such plan beats in both; the dashed one allows plans that drop assignments, which compute "
                  "less.",
                  SettingText(o, simulations), fmt::join(simulations.chunks(), ", "), o.simulate.expert_weights, other,
                  o.simulate.expert_weights),
      numbers);
}

}  // namespace npumoe
