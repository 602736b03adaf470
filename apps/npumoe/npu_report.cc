// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/npu_report.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "apps/npumoe/text.h"

namespace npumoe {
namespace {

std::string Clock(const RunReport& report) {
  return report.simulated ? fmt::format("simulated on {}", report.npu) : "measured on " + report.npu;
}

constexpr char kMissing[] = "n/a (source missing)";

// Of both sides as modelled, or of this process as the system counts it.
std::string Energy(const RunReport& report, int digits) {
  if (report.simulated) return fmt::format("{:.{}f} J", report.npu_joules + report.cpu_joules, digits);
  return report.process_joules ? fmt::format("{:.{}f} J of this process", *report.process_joules, digits)
                               : fmt::format("energy {}", kMissing);
}

std::string Cycles(const RunReport& report) {
  return report.process_cycles ? fmt::format("{} CPU cycles", *report.process_cycles)
                               : fmt::format("CPU cycles {}", kMissing);
}

double Percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

std::string Row(std::string_view layer, std::string_view name, const StageReport& stage) {
  return fmt::format("{:>5} {:<9} {:>5} {:>5} {:>5} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>9.3f} {:>9.3f}\n", layer,
                     name, stage.programs, stage.loads, stage.dispatches, stage.rows_used, stage.rows_padded,
                     stage.rows_cpu, stage.rows_spilled, stage.rows_pruned, stage.rows_rerouted,
                     stage.npu_seconds * 1e3, stage.cpu_seconds * 1e3);
}

bool IsEmpty(const StageReport& stage) { return stage.dispatches + stage.rows_cpu + stage.rows_pruned == 0; }

nlohmann::ordered_json ToJson(const StageReport& stage) {
  return {{"programs", stage.programs},           {"loads", stage.loads},
          {"dispatches", stage.dispatches},       {"rows_used", stage.rows_used},
          {"rows_padded", stage.rows_padded},     {"rows_cpu", stage.rows_cpu},
          {"rows_spilled", stage.rows_spilled},   {"rows_pruned", stage.rows_pruned},
          {"rows_rerouted", stage.rows_rerouted}, {"npu_ms", stage.npu_seconds * 1e3},
          {"cpu_ms", stage.cpu_seconds * 1e3}};
}

}  // namespace

std::string NpuSummary(const RunReport& report) {
  const StageReport experts = report.Experts();
  if (report.layers.empty()) return fmt::format("{}: no prompt was long enough for the NPU", report.npu);
  const auto on_npu = static_cast<double>(experts.rows_used);
  const auto rows =
      static_cast<double>(experts.rows_used + experts.rows_cpu + experts.rows_spilled + experts.rows_pruned);
  std::string text = fmt::format("{}: prefill {:.4f} s, {}; {:.1f} % of expert rows on the NPU", Clock(report),
                                 report.prefill_seconds, Energy(report, 4), Percent(on_npu, rows));
  if (experts.rows_pruned > 0) text += fmt::format(", {} rows pruned", experts.rows_pruned);
  if (experts.rows_rerouted > 0) text += fmt::format(", {} rows rerouted", experts.rows_rerouted);
  if (report.unfinished > 0) text += ", of a prompt that was not finished";
  uint64_t fallbacks = 0;
  for (const auto& [reason, times] : report.fallbacks) fallbacks += times;
  if (fallbacks > 0) text += fmt::format(", {} fallbacks to the CPU", fallbacks);
  return text;
}

std::string FormatNpuReport(const RunReport& report) {
  std::string text = fmt::format("NPU, {}; plan: {}; order {}\n", Clock(report), OneLine(report.plan), report.order);
  text += fmt::format("{:>5} {:<9} {:>5} {:>5} {:>5} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>9} {:>9}\n", "layer",
                      "stage", "progs", "loads", "runs", "used", "padded", "cpu", "spilled", "pruned", "rerout.",
                      "NPU ms", "CPU ms");
  for (size_t layer = 0; layer < report.layers.size(); ++layer) {
    const LayerReport& one = report.layers[layer];
    if (!IsEmpty(one.attention)) text += Row(std::to_string(layer), "attention", one.attention);
    if (!IsEmpty(one.experts)) text += Row(std::to_string(layer), "experts", one.experts);
  }
  text += Row("all", "attention", report.Attention()) + Row("all", "experts", report.Experts());
  text += fmt::format(
      "prefill {:.6f} s, both sides busy {:.6f} s, waiting for programs {:.6f} s; {} ({})\n", report.prefill_seconds,
      report.overlap_seconds, report.load_wait_seconds,
      report.simulated ? fmt::format("NPU {:.6f} J, CPU {:.6f} J", report.npu_joules, report.cpu_joules)
                       : Energy(report, 6) + ", " + Cycles(report),
      Clock(report));
  if (!report.plan_refused.empty()) text += "the model's own plan is not taken: " + OneLine(report.plan_refused) + "\n";
  if (!report.note.empty()) text += OneLine(report.note) + "\n";
  for (const auto& [reason, times] : report.fallbacks) {
    text += fmt::format("fell back to the CPU {} x: {}\n", times, OneLine(reason));
  }
  return text;
}

nlohmann::ordered_json NpuReportJson(const RunReport& report) {
  nlohmann::ordered_json json;
  json["npu"] = report.npu;
  json["clock"] = Clock(report);
  json["simulated"] = report.simulated;
  if (report.simulated) json["spec"] = report.npu;
  json["plan"] = ReplaceInvalidUtf8(report.plan);
  json["order"] = report.order.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(report.order);
  json["prefill_seconds"] = report.prefill_seconds;
  if (report.unfinished > 0) json["unfinished"] = report.unfinished;
  json["overlap_seconds"] = report.overlap_seconds;
  json["load_wait_seconds"] = report.load_wait_seconds;
  if (report.simulated) {
    json["npu_joules"] = report.npu_joules;
    json["cpu_joules"] = report.cpu_joules;
  } else {
    json["process_joules"] = report.process_joules ? nlohmann::ordered_json(*report.process_joules) : nullptr;
    json["process_cycles"] = report.process_cycles ? nlohmann::ordered_json(*report.process_cycles) : nullptr;
  }
  if (!report.plan_refused.empty()) json["plan_refused"] = ReplaceInvalidUtf8(report.plan_refused);
  if (!report.note.empty()) json["note"] = ReplaceInvalidUtf8(report.note);
  json["attention"] = ToJson(report.Attention());
  json["experts"] = ToJson(report.Experts());
  json["layers"] = nlohmann::ordered_json::array();
  for (const LayerReport& layer : report.layers) {
    json["layers"].push_back({{"attention", ToJson(layer.attention)}, {"experts", ToJson(layer.experts)}});
  }
  json["fallbacks"] = nlohmann::ordered_json::object();
  for (const auto& [reason, times] : report.fallbacks) json["fallbacks"][ReplaceInvalidUtf8(reason)] = times;
  return json;
}

}  // namespace npumoe
