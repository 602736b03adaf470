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
  std::string text = fmt::format("{}: prefill {:.4f} s, {:.4f} J; {:.1f} % of expert rows on the NPU", Clock(report),
                                 report.prefill_seconds, report.npu_joules + report.cpu_joules, Percent(on_npu, rows));
  if (experts.rows_pruned > 0) text += fmt::format(", {} rows pruned", experts.rows_pruned);
  if (experts.rows_rerouted > 0) text += fmt::format(", {} rows rerouted", experts.rows_rerouted);
  uint64_t fallbacks = 0;
  for (const auto& [reason, times] : report.fallbacks) fallbacks += times;
  if (fallbacks > 0) text += fmt::format(", {} fallbacks to the CPU", fallbacks);
  return text;
}

std::string FormatNpuReport(const RunReport& report) {
  std::string text = fmt::format("NPU, {}; plan: {}\n", Clock(report), OneLine(report.plan));
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
      "prefill {:.6f} s, both sides busy {:.6f} s, waiting for programs {:.6f} s; NPU {:.6f} J, CPU {:.6f} J ({})\n",
      report.prefill_seconds, report.overlap_seconds, report.load_wait_seconds, report.npu_joules, report.cpu_joules,
      Clock(report));
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
  json["plan"] = ReplaceInvalidUtf8(report.plan);
  json["prefill_seconds"] = report.prefill_seconds;
  json["overlap_seconds"] = report.overlap_seconds;
  json["load_wait_seconds"] = report.load_wait_seconds;
  json["npu_joules"] = report.npu_joules;
  json["cpu_joules"] = report.cpu_joules;
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
