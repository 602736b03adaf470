// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/eval_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/npumoe/npu_report.h"
#include "apps/npumoe/text.h"

namespace npumoe {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kNameWidth = 22;

std::string Named(std::string_view name, const std::string& value) { return NamedLine(kNameWidth, name, value); }

std::string Percent(const Share& share) {
  return fmt::format("{:.2f} % [{:.2f}, {:.2f}]", 100 * share.value, 100 * share.low, 100 * share.high);
}

double PartOf(uint64_t rows, uint64_t all) {
  return all > 0 ? static_cast<double>(rows) / static_cast<double>(all) : 0;
}

std::string Device(const RunReport& npu, const RunIdentity& identity) {
  if (npu.npu.empty()) return "CPU";
  return fmt::format("{}{}, overflow {}", npu.simulated ? "simulated " : "", npu.npu, identity.overflow);
}

// The device, and what became of the rows that experts had to compute.
std::string DeviceLines(const RunReport& npu, const RunIdentity& identity, uint64_t rows, uint64_t dropped,
                        uint64_t rerouted) {
  std::string text = Named("device", Device(npu, identity));
  if (npu.npu.empty()) return text;
  return text + Named("expert rows", fmt::format("{}, {:.2f} % dropped, {:.2f} % rerouted{}", rows,
                                                 100 * PartOf(dropped, rows), 100 * PartOf(rerouted, rows),
                                                 npu.simulated ? fmt::format(" (simulated {})", npu.npu) : ""));
}

Json ToJson(const Share& share) {
  return {{"value", share.value}, {"low", share.low}, {"high", share.high}, {"n", share.n}};
}

// The line of changed choices, if there are any.
std::string MarginLine(std::string_view name, const Margins& margins, std::string_view unit) {
  if (margins.n_changed == 0) return "";
  return Named(name,
               fmt::format("{}; by the exact run ahead by {:.2g} {} at the median, {:.2g} at most; {} are as close",
                           margins.n_changed, margins.median, unit, margins.widest, margins.n_as_close));
}

Json ToJson(const Margins& margins, std::string_view unit) {
  return {{"n_changed", margins.n_changed},
          {"median", margins.median},
          {"widest", margins.widest},
          {"n_as_close", margins.n_as_close},
          {"unit", unit}};
}

std::string_view MarginUnit(const TaskReport& report) {
  const auto known = EvalTasks();
  const auto task = std::ranges::find(known, report.task, &EvalTask::name);
  return task != known.end() && task->from_file ? "nats per character" : "nats";
}

void AddDevice(Json& json, const RunReport& npu, const RunIdentity& identity, uint64_t rows, uint64_t dropped,
               uint64_t rerouted) {
  json["model_hash"] = identity.model_hash;
  json["numerics"] = ReplaceInvalidUtf8(identity.numerics);
  json["device"] = Device(npu, identity);
  if (npu.npu.empty()) return;
  json["simulated"] = npu.simulated;
  json["overflow"] = identity.overflow;
  json["plan_hash"] = identity.plan_hash;
  json["expert_rows"] = rows;
  json["rows_dropped"] = dropped;
  json["rows_rerouted"] = rerouted;
  json["npu"] = NpuReportJson(npu);
}

struct Rows {
  uint64_t all, dropped, rerouted;
};

Rows RowsOf(const RunReport& npu) {
  const StageReport e = npu.Experts();
  return {e.rows_used + e.rows_cpu + e.rows_spilled + e.rows_pruned, e.rows_pruned, e.rows_rerouted};
}

}  // namespace

std::string EvalText(const EvalReport& report, const RunIdentity& identity) {
  std::string text = Named("tokens", std::to_string(report.n_tokens));
  text += Named("perplexity", fmt::format("{:.4f} (nll {:.5f} +- {:.5f})", report.perplexity, report.mean_nll,
                                          report.nll_standard_error));
  const Rows rows = RowsOf(report.npu);
  text += DeviceLines(report.npu, identity, rows.all, rows.dropped, rows.rerouted);
  if (!report.agreement) return text;
  const Agreement& agreement = *report.agreement;
  text +=
      Named("exact CPU run",
            fmt::format("perplexity {:.4f}, same likeliest token {:.3f} %, KL mean {:.3e}, median {:.3e}, p99 {:.3e}",
                        agreement.other_perplexity, 100 * agreement.top1, agreement.mean_kl, agreement.median_kl,
                        agreement.p99_kl));
  text += MarginLine("changed tokens", agreement.margins, "nats");
  if (agreement.alike_margins) text += MarginLine("... with same experts", *agreement.alike_margins, "nats");
  if (agreement.same_experts) {
    text += Named("same experts", fmt::format("{:.3f} % of (token, layer) choices", 100 * *agreement.same_experts));
  }
  return text;
}

std::string EvalJson(const EvalReport& report, const RunIdentity& identity) {
  Json json{{"n_tokens", report.n_tokens},
            {"perplexity", report.perplexity},
            {"mean_nll", report.mean_nll},
            {"nll_standard_error", report.nll_standard_error}};
  if (report.agreement) {
    json["agreement"] = {{"exact_perplexity", report.agreement->other_perplexity},
                         {"top1", report.agreement->top1},
                         {"mean_kl", report.agreement->mean_kl},
                         {"median_kl", report.agreement->median_kl},
                         {"p99_kl", report.agreement->p99_kl}};
    json["agreement"]["margins"] = ToJson(report.agreement->margins, "nats");
    if (report.agreement->alike_margins) {
      json["agreement"]["alike_margins"] = ToJson(*report.agreement->alike_margins, "nats");
    }
    if (report.agreement->same_experts) json["agreement"]["same_experts"] = *report.agreement->same_experts;
  }
  const Rows rows = RowsOf(report.npu);
  AddDevice(json, report.npu, identity, rows.all, rows.dropped, rows.rerouted);
  return json.dump(2) + "\n";
}

std::string TaskText(const TaskReport& report, const RunIdentity& identity) {
  std::string items = fmt::format("{} items", report.n_items);
  if (report.n_items < report.n_wanted) items += fmt::format(" of {}, stopped early", report.n_wanted);
  if (report.n_cut > 0) items += fmt::format(", {} lost their beginning to a short context", report.n_cut);
  std::string text = Named(report.task, items);
  for (const TaskScore& score : report.scores) {
    text += Named(score.name,
                  Percent(score.share) + (score.exact ? "; exact CPU run " + Percent(*score.exact) : std::string()));
  }
  if (report.same_answers) text += Named("same answers", Percent(*report.same_answers) + " as the exact CPU run");
  if (report.margins) text += MarginLine("changed answers", *report.margins, MarginUnit(report));
  return text + DeviceLines(report.npu, identity, report.expert_rows, report.rows_dropped, report.rows_rerouted);
}

std::string TaskJson(const TaskReport& report, const RunIdentity& identity, const TaskOptions& options) {
  Json json{{"task", report.task},           {"n_items", report.n_items}, {"n_wanted", report.n_wanted},
            {"n_resumed", report.n_resumed}, {"n_cut", report.n_cut},     {"n_shots", options.n_shots},
            {"seed", options.seed}};
  json["scores"] = Json::object();
  for (const TaskScore& score : report.scores) {
    json["scores"][score.name] = ToJson(score.share);
    if (score.exact) json["scores"][score.name]["exact"] = ToJson(*score.exact);
  }
  if (report.same_answers) json["same_answers"] = ToJson(*report.same_answers);
  if (report.margins) json["margins"] = ToJson(*report.margins, MarginUnit(report));
  AddDevice(json, report.npu, identity, report.expert_rows, report.rows_dropped, report.rows_rerouted);
  return json.dump(2) + "\n";
}

}  // namespace npumoe
