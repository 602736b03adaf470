// SPDX-License-Identifier: Apache-2.0
// `npumoe simulate`: what a prompt would take on a machine that is not here, under one plan or another.
#include "npumoe/simulate.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/npu_flags.h"
#include "apps/npumoe/progress.h"
#include "apps/npumoe/routing_flags.h"
#include "apps/npumoe/simulate_json.h"
#include "apps/npumoe/text.h"
#include "npumoe/files.h"
#include "npumoe/npu.h"
#include "npumoe/plan.h"

namespace npumoe {
namespace {

// The paper's own name for its whole plan.
constexpr std::string_view kPaperPlan = "npumoe", kPaperPlacement = "all";

struct SimulateFlags {
  std::vector<std::string> models, npus, placements, objectives;
  std::string prompts = "4096", chunks = "256", sweep;
  RoutingFlags routing;
  SimulateOptions options;
  bool as_json = false, details = false;
  std::vector<const CLI::Option*> of_ours;
  CLI::Option *tiers_option = nullptr, *experts_option = nullptr, *attention_option = nullptr;
  const CLI::Option *json_option = nullptr, *details_option = nullptr;

  void AddTo(CLI::App& app) {
    app.add_option("-m,--model,model", models,
                   "qwen3-30b-a3b, phi-3.5-moe, phi-tiny-moe, another shape of 'npumoe make-model', or a config.json")
        ->required()
        ->delimiter(',');
    app.add_option("--npu", npus, "machines ('npumoe doctor' lists them) [m2-max]")->delimiter(',');
    app.add_option("-p,--prompt", prompts, "prompt lengths in tokens, as 1024,4096 [4096]");
    app.add_option("--chunk,--npu-chunk", chunks, "prompt tokens of one attention dispatch, as 256,512 [256]");
    auto* batch =
        app.add_option("--moe-batch", options.moe_batch_tokens, "tokens whose experts run together in 'ours' [4096]");
    batch->check(WholeIn(1, kMaxContextTokens));
    auto* order = app.add_option("--order", options.order,
                                 "of 'ours', " + OneOf(Orders()) + " (wavefront: two halves in flight) [auto]");
    routing.AddTo(app, options);
    app.add_option("--placement", placements,
                   fmt::format("some of: {} ({} is the paper's name of {}) [all of them]",
                               fmt::join(Placements(), ", "), kPaperPlan, kPaperPlacement))
        ->delimiter(',');
    auto* objective = app.add_option("--objective", objectives,
                                     fmt::format("of 'ours', some of: {} [time]", fmt::join(Objectives(), ", ")));
    objective->delimiter(',');
    of_ours = {batch, order, objective};
    experts_option =
        app.add_option("--expert-weights", options.expert_weights, "fp16, int8, lut8, lut6 or lut4 [fp16]");
    attention_option = app.add_option("--attention-weights", options.attention_weights, "likewise [fp16]");
    tiers_option =
        app.add_option("--tiers", options.n_tiers, "capacities of a layer in the paper's plans with tiers [3]");
    tiers_option->check(WholeIn(1, 64));
    app.add_option("--seeds", options.n_seeds, "prompts, each with its own routing [5]")->check(WholeIn(1, 10000));
    app.add_option("-s,--seed", options.seed, "of the first [1]")->check(WholeIn(0, UINT64_MAX));
    app.add_option("--sweep", sweep, "write one row per placement of every combination; .csv or .json")
        ->check(NotStdout("a file, .csv or .json"));
    json_option = app.add_flag("--json", as_json, "everything as JSON");
    details_option = app.add_flag("--details", details,
                                  "with --json or --sweep X.json: tier maps, popularity, one layer's time line");
  }

  // Flags that cannot be obeyed.
  Status Check() const {
    if (!placements.empty() && std::ranges::find(placements, "ours") == placements.end()) {
      for (const CLI::Option* option : of_ours) {
        if (const Status good = Refuse({option}, "of placement ours only, which is not asked for"); !good) return good;
      }
    }
    if (!placements.empty() && std::ranges::none_of(placements, HasTiers)) {
      if (const Status good = Refuse({tiers_option}, kTiersText); !good) return good;
    }
    if (!placements.empty() && std::ranges::none_of(placements, HasExperts)) {
      if (const Status good = Refuse({experts_option}, "no placement asked for runs experts on the NPU"); !good)
        return good;
    }
    if (!placements.empty() && std::ranges::none_of(placements, HasAttention)) {
      if (const Status good = Refuse({attention_option}, "no placement asked for runs attention on the NPU"); !good)
        return good;
    }
    if (!as_json && !sweep.ends_with(".json")) {
      if (const Status good = Refuse({details_option}, "wants --json or --sweep X.json"); !good) return good;
    }
    return sweep.empty() ? Status(Ok{}) : Refuse({json_option}, "not with --sweep, whose file says what it is");
  }
};

std::string Percent(const SimulatedValue& value) { return fmt::format("{:.1f} %", 100 * value.mean); }

std::string Table(const SimulateReport& report) {
  std::string text = fmt::format(
      "{} on {} ({}), {} prompt tokens in chunks of {}, routing {}, {} seeds; simulated, mean +- deviation\n\n",
      report.model, report.npu, report.npu_title, report.prompt_tokens, report.chunk_tokens, report.routing,
      report.n_seeds);
  double most_seconds = 0, most_joules = 0;
  for (const SimulatedPlacement& p : report.placements) {
    most_seconds = std::max(most_seconds, p.ttft_seconds.mean);
    most_joules = std::max(most_joules, p.joules_per_token.mean);
  }
  const Prefixed time = UnitFor(most_seconds, "s"), energy = UnitFor(most_joules, "J");
  const auto seconds = [&](double value) { return ThreePlaces(value * time.per_unit); };
  const auto with_deviation = [](const SimulatedValue& value, const Prefixed& unit) {
    return fmt::format("{} +-{}", ThreePlaces(value.mean * unit.per_unit),
                       ThreePlaces(value.deviation * unit.per_unit));
  };
  const auto name_of = [](const SimulatedPlacement& p) {
    return p.placement + (p.objective == "time" ? "" : ", " + p.objective);
  };
  text += fmt::format(
      "| placement | TTFT {} | {}/token | CPU busy {} | padding | dropped | over, on the CPU | rows on the NPU | gap "
      "to "
      "bound |\n"
      "|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
      time.name, energy.name, time.name);
  for (const SimulatedPlacement& p : report.placements) {
    const bool any = p.on_npu.mean > 0;
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", name_of(p),
                        with_deviation(p.ttft_seconds, time), with_deviation(p.joules_per_token, energy),
                        seconds(p.cpu_seconds.mean), any ? Percent(p.padding) : "-", Percent(p.dropped),
                        Percent(p.spilled), Percent(p.on_npu), Percent(p.gap));
  }
  text += fmt::format(
      "\n| placement, {} | attention | router | experts | pack | scatter | load | output | of it dispatch floors |\n"
      "|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
      time.name);
  for (const SimulatedPlacement& p : report.placements) {
    text += fmt::format("| {} |", name_of(p));
    for (const SimulatedStage& stage : p.stages) text += fmt::format(" {} |", seconds(stage.seconds));
    text += fmt::format(" {} |\n", seconds(p.floor_seconds));
  }
  text += fmt::format("\nsimulated on {}\n", report.npu);
  for (const SimulatedPlacement& p : report.placements) {
    if (p.placement != "ours") continue;
    const bool halves = p.order == "wavefront";
    text += fmt::format("order of ours: {}\n",
                        halves ? "wavefront, a batch in two halves, one's experts beside the other's attention" : p.order);
  }
  return text;
}

std::string CsvHeader() {
  return "model,npu,prompt_tokens,chunk_tokens,routing,placement,order,mode,objective,simulated,ttft_seconds,"
         "ttft_deviation,joules_per_token,joules_deviation,cpu_busy_seconds,npu_busy_seconds,padding,dropped,spilled,"
         "on_npu,gap_to_bound,attention,router,experts,pack,scatter,load,output,dispatch_floors,n_programs\n";
}

// Commas in names (zipf:S,D) are quoted.
std::string CsvRows(const SimulateReport& r) {
  std::string text;
  for (const SimulatedPlacement& p : r.placements) {
    text += fmt::format(
        "\"{}\",{},{},{},\"{}\",{},{},{},{},true,{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:."
        "6g}",
        r.model, r.npu, r.prompt_tokens, r.chunk_tokens, r.routing, p.placement, p.order, p.mode, p.objective,
        p.ttft_seconds.mean, p.ttft_seconds.deviation, p.joules_per_token.mean, p.joules_per_token.deviation,
        p.cpu_seconds.mean, p.npu_seconds.mean, p.padding.mean, p.dropped.mean, p.spilled.mean, p.on_npu.mean,
        p.gap.mean);
    for (const SimulatedStage& stage : p.stages) text += fmt::format(",{:.6g}", stage.seconds);
    text += fmt::format(",{:.6g},{}\n", p.floor_seconds, p.n_programs);
  }
  return text;
}

// Every combination of the lists.
Result<std::vector<SimulateOptions>> Combinations(const SimulateFlags& flags) {
  const auto prompts = ParseList(flags.prompts, kMaxContextTokens, "prompt");
  if (!prompts) return prompts.error();
  const auto chunks = ParseList(flags.chunks, kMaxChunkTokens, "chunk");
  if (!chunks) return chunks.error();
  std::vector<SimulateOptions> all;
  for (const std::string& model : flags.models) {
    for (const std::string& npu : flags.npus) {
      for (const uint32_t prompt : *prompts) {
        for (const uint32_t chunk : *chunks) {
          for (const std::string& objective : flags.objectives) {
            SimulateOptions options = flags.options;
            options.model = model, options.npu = npu, options.prompt_tokens = prompt, options.chunk_tokens = chunk;
            options.objective = objective;
            if (options.placements.empty() && &objective != &flags.objectives[0]) {
              options.placements = {"ours"};  // the others do not depend on it
            }
            all.push_back(std::move(options));
          }
        }
      }
    }
  }
  return all;
}

std::string SweepText(const SimulateFlags& flags, const std::vector<SimulateReport>& reports) {
  if (flags.sweep.ends_with(".csv")) {
    std::string text = CsvHeader();
    for (const SimulateReport& report : reports) text += CsvRows(report);
    return text;
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const SimulateReport& report : reports) json.push_back(ToJson(report, flags.details));
  return json.dump(2) + "\n";
}

int Failed(const Error& error) {
  const bool usage = error.code == Code::kInvalidArgument || error.code == Code::kNotFound;
  return usage ? UsageError("simulate: " + error.message) : FailWith(error);
}

}  // namespace

int RunSimulate(const std::vector<std::string>& args) {
  CLI::App app("What prefill would take on a machine, plan by plan, without weights; all figures are simulated.",
               "simulate");
  SimulateFlags flags;
  flags.AddTo(app);
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  if (!flags.sweep.empty() && !flags.sweep.ends_with(".csv") && !flags.sweep.ends_with(".json")) {
    return UsageError(fmt::format("simulate: --sweep {}: wanted a name that ends in .csv or .json", flags.sweep));
  }
  if (const Status good = flags.Check(); !good) return UsageError("simulate: " + good.error().message);
  if (const Status good = flags.routing.Check(); !good) return UsageError("simulate: " + good.error().message);
  if (!flags.sweep.empty()) {
    std::vector<std::string> inputs = flags.models;
    for (const std::string& model : flags.models) inputs.push_back(model + "/config.json");
    inputs.push_back(flags.routing.path());
    if (const Status apart = CheckApart({flags.sweep}, inputs); !apart) {
      return UsageError("simulate: " + apart.error().message);
    }
    if (const Status can = CheckOutputFile(flags.sweep); !can) return FailWith(can.error());
  }
  if (flags.npus.empty()) flags.npus = {"m2-max"};
  for (std::string& npu : flags.npus) npu = WithoutSim(npu);
  if (flags.objectives.empty()) flags.objectives = {"time"};
  for (const std::string& name : flags.placements) {
    flags.options.placements.push_back(name == kPaperPlan ? std::string(kPaperPlacement) : name);
  }
  if (const Status read = flags.routing.Read(flags.options); !read) return FailWith(read.error());
  const auto combinations = Combinations(flags);
  if (!combinations) return UsageError("simulate: " + combinations.error().message);

  for (const SimulateOptions& options : *combinations) {  // the last may be wrong, and the first take minutes
    if (const Status good = CheckSimulateOptions(options); !good) return Failed(good.error());
  }

  std::vector<SimulateReport> reports;
  Progress progress("simulate", "prompts", "prompts/s");
  for (const SimulateOptions& options : *combinations) {
    auto report = Simulate(options, [&](size_t done_prompts, size_t n_prompts) {
      progress.Show(reports.size() * n_prompts + done_prompts, combinations->size() * n_prompts);
      return true;  // Ctrl-C ends the program: there is nothing to keep
    });
    if (!report) {
      progress.Clear();
      return Failed(report.error());
    }
    reports.push_back(std::move(*report));
  }
  progress.Clear();
  if (!flags.sweep.empty()) {
    const Status written = WriteOutputFile(flags.sweep, SweepText(flags, reports));
    return written ? kExitDone : FailWith(written.error());
  }
  std::string text;
  if (flags.as_json) {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const SimulateReport& report : reports) json.push_back(ToJson(report, flags.details));
    text = (reports.size() == 1 ? json[0] : json).dump(2) + "\n";
  } else {
    for (const SimulateReport& report : reports) text += (text.empty() ? "" : "\n") + Table(report);
  }
  const Status written = WriteOut(text);
  return written ? kExitDone : FailWith(written.error());
}

}  // namespace npumoe
