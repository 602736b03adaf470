// SPDX-License-Identifier: Apache-2.0
// `npumoe plan`: decides what runs on an NPU, and in which fixed shapes.
#include "npumoe/plan.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/npu_flags.h"
#include "apps/npumoe/progress.h"
#include "apps/npumoe/text.h"
#include "npumoe/calibrate.h"
#include "npumoe/files.h"
#include "npumoe/npu.h"

namespace npumoe {
namespace {

constexpr size_t kMaxSampleBytes = size_t{64} << 20;  // far above what the first tokens need

struct PlanFlags {
  std::string model, stats, out, sample;
  PlanOptions options;
  bool explain = false, as_json = false;
  CLI::Option *chunk_option = nullptr, *batch_option = nullptr, *order_option = nullptr, *prompt_option = nullptr,
              *error_option = nullptr, *sample_option = nullptr, *tiers_option = nullptr, *objective_option = nullptr,
              *mode_option = nullptr, *experts_option = nullptr, *attention_option = nullptr;

  void AddTo(CLI::App& app) {
    app.add_option("-m,--model,model", model, "a GGUF file or a Hugging Face folder")->required();
    app.add_option("--stats,--routing-stats", stats,
                   "what 'npumoe calibrate' wrote; default: the file beside the model, if there is one");
    app.add_option("--npu", options.npu, "the NPU to plan for ('npumoe doctor' lists them) [m2-max]")
        ->check(SilentMemberOf(NpuNames()));
    const auto tokens = WholeIn(1, kMaxContextTokens);
    chunk_option =
        app.add_option("--chunk,--npu-chunk", options.chunk_tokens, "prompt tokens of one attention dispatch [256]");
    chunk_option->check(WholeIn(1, kMaxChunkTokens));
    batch_option = app.add_option("--moe-batch", options.moe_batch_tokens,
                                  "of 'ours': tokens whose experts run together, at least a chunk [4096]");
    batch_option->check(tokens);
    order_option = app.add_option("--order", options.order,
                                  "of 'ours', " + OneOf(Orders()) +
                                      " (wavefront: a batch in two halves, one's experts beside the "
                                      "other's attention; auto: whichever the objective prefers) [auto]");
    prompt_option = app.add_option("--prompt", options.prompt_tokens, "longest prompt that the plan covers [4096]");
    prompt_option->check(tokens);
    tiers_option =
        app.add_option("--tiers", options.n_tiers, "capacities of a layer in the paper's plans with tiers [3]");
    tiers_option->check(WholeIn(1, 64));
    objective_option = app.add_option("--objective", options.objective,
                                      OneOf(Objectives()) + " (edp: the product of time and energy) [time]");
    app.add_option("--placement", options.placement, OneOf(Placements()) + " [ours]");
    mode_option =
        app.add_option("--mode,--overflow", options.mode,
                       "rows above a capacity: exact computes them on the CPU, prune drops them, reroute gives them to "
                       "other experts [exact]");
    experts_option = app.add_option(
        "--expert-weights", options.expert_weights,
        "fp16, int8, lut8, lut6 or lut4 (palettes of 256, 64, 16 values), or auto: chosen by measured error [fp16]");
    attention_option = app.add_option("--attention-weights", options.attention_weights, "likewise [fp16]");
    error_option = app.add_option("--max-weight-error", options.max_weight_error,
                                  fmt::format("relative error of outputs that auto allows [{}]", kMaxWeightError));
    error_option->check(NumberAbove(0, kMostWeightError));
    sample_option = app.add_option("-f,--file", sample,
                                   "text whose first tokens errors are measured on; - = stdin; default: built in");
    app.add_flag("--phimoe-llama-cpp", options.phimoe_llama_cpp, "PhiMoE as llama.cpp computes it");
    app.add_flag("--explain", explain, "the reason of every decision");
    app.add_option("-o,--output", out, "file to write; - = stdout; default: plan.json beside the model");
    app.add_flag("--json", as_json, "the summary as JSON");
  }
};

struct Stats {
  std::string path, text;  // empty when there are none
};

Result<Stats> ReadStats(const PlanFlags& flags) {
  Stats stats{flags.stats, {}};
  if (stats.path.empty()) {
    stats.path = SidecarPath(flags.model, "routing_stats.json");
    std::error_code ignored;
    if (!std::filesystem::exists(stats.path, ignored)) return Stats{};
  }
  auto text = ReadAll(stats.path, kMaxStatsBytes);
  if (!text) return text.error();
  stats.text = std::move(*text);
  if (stats.text.empty()) return Error{Code::kCorruptFile, fmt::format("{}: empty, wanted statistics", stats.path)};
  return stats;
}

nlohmann::ordered_json ToJson(const WeightErrorRow& row) {
  return {{"format", row.format},
          {"experts", row.experts},
          {"gate_up", row.gate_up},
          {"down", row.down},
          {"attention", row.attention},
          {"worst_expert", row.worst_expert},
          {"worst_attention", row.worst_attention}};
}

std::string Summary(const PlanDocument& plan, const PlanFlags& flags, const Stats& stats) {
  const PlanOptions& o = flags.options;
  return NamedLine(12, "npu", fmt::format("{}, simulated", plan.npu)) +
         NamedLine(12, "placement",
                   fmt::format("{}, {}, for {}, overflow {}, MoE batches of {} tokens", plan.placement, plan.order, o.objective, o.mode,
                               plan.batch_tokens)) +
         (plan.whole_tokens == 0
              ? std::string()
              : NamedLine(12, "short", fmt::format("batches of up to {} tokens go through as one, not in halves",
                                                   plan.whole_tokens))) +
         NamedLine(12, "statistics", stats.path.empty() ? "none: experts count as equally popular" : stats.path) +
         NamedLine(12, "weights",
                   fmt::format("experts {}, attention {}", plan.expert_weights, plan.attention_weights)) +
         NamedLine(12, "programs", fmt::format("{} of {} in all", plan.n_programs, FormatBytes(plan.program_bytes))) +
         NamedLine(12, "experts", fmt::format("{} on the NPU, {} on the CPU", plan.n_npu_experts, plan.n_cpu_experts)) +
         NamedLine(12, "expected",
                   fmt::format("{:.4g} s and {:.4g} J for attention and routed experts of {} tokens, simulated on {}",
                               plan.expected_seconds, plan.expected_joules, plan.batch_tokens, plan.npu));
}

std::string JsonSummary(const PlanDocument& plan, const PlanFlags& flags, const Stats& stats) {
  const auto text = [](const std::string& value) { return ReplaceInvalidUtf8(value); };
  nlohmann::ordered_json json = {{"npu", plan.npu},
                                 {"simulated", true},
                                 {"placement", plan.placement},
                                 {"order", plan.order},
                                 {"calibrated", plan.calibrated},
                                 {"stats", text(stats.path)},
                                 {"batch_tokens", plan.batch_tokens},
                                 {"whole_tokens", plan.whole_tokens},
                                 {"n_programs", plan.n_programs},
                                 {"program_bytes", plan.program_bytes},
                                 {"n_npu_experts", plan.n_npu_experts},
                                 {"n_cpu_experts", plan.n_cpu_experts},
                                 {"expected_seconds", plan.expected_seconds},
                                 {"expected_joules", plan.expected_joules},
                                 {"expert_weights", plan.expert_weights},
                                 {"attention_weights", plan.attention_weights},
                                 {"path", text(flags.out)}};
  if (!plan.weight_errors.empty()) {
    json["weight_errors"] = nlohmann::ordered_json::array();
    for (const WeightErrorRow& row : plan.weight_errors) json["weight_errors"].push_back(ToJson(row));
  }
  if (flags.explain) {
    json["reasons"] = nlohmann::ordered_json::array();
    for (const std::string& reason : plan.reasons) json["reasons"].push_back(text(reason));
  }
  return json.dump(2) + "\n";
}

// Lengths that the model's context or the NPU does not allow are not refused, but said.
void NoteWhatIsOtherwise(const PlanDocument& plan, const PlanFlags& flags) {
  const char* const why = "what the model's context and the NPU allow (--explain says more)";
  const PlanOptions& o = flags.options;
  NoteOtherLength(*flags.chunk_option, o.chunk_tokens, plan.chunk_tokens, why);
  NoteOtherLength(*flags.batch_option, o.moe_batch_tokens, plan.batch_tokens, why);
  NoteOtherLength(*flags.prompt_option, o.prompt_tokens, plan.prompt_tokens, why);
}

int Finish(const Status& status) { return status.ok() ? kExitDone : FailWith(status.error()); }

}  // namespace

int RunPlan(const std::vector<std::string>& args) {
  CLI::App app("Decides what of a model runs on an NPU, and in which fixed shapes.", "plan");
  PlanFlags flags;
  flags.AddTo(app);
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  if (flags.out == "-" && flags.as_json) return UsageError("plan: --json and -o -: both write to stdout");
  if (flags.out.empty()) flags.out = SidecarPath(flags.model, "plan.json");

  const std::string own_stats = flags.stats.empty() ? SidecarPath(flags.model, "routing_stats.json") : flags.stats;
  if (const Status apart = CheckApart({flags.out}, {flags.model, own_stats, flags.sample}); !apart) {
    return UsageError("plan: " + apart.error().message);
  }
  if (const Status good = CheckPlanFlags(
          flags.options, {flags.batch_option, flags.order_option, flags.error_option, flags.experts_option,
                          flags.attention_option, flags.objective_option, flags.mode_option});
      !good) {
    return UsageError("plan: " + good.error().message);
  }
  // Whoever asks for reasons, or reads JSON, learns what a format costs.
  const bool only_fp16 = flags.options.expert_weights == "fp16" && flags.options.attention_weights == "fp16";
  flags.options.measure_weights = !only_fp16 && (flags.explain || flags.as_json);
  if (!HasTiers(flags.options.placement)) {
    const Status good = Refuse({flags.tiers_option}, kTiersText);
    if (!good) return UsageError("plan: " + good.error().message);
  }
  const bool chooses = flags.options.expert_weights == "auto" || flags.options.attention_weights == "auto";
  if (!chooses && !flags.options.measure_weights) {
    const Status good = Refuse({flags.sample_option},
                               "no errors are measured: wants weights that are auto, or others than "
                               "fp16 with --explain or --json");
    if (!good) return UsageError("plan: " + good.error().message);
  }
  if (!flags.sample.empty()) {
    auto text = ReadAll(flags.sample, kMaxSampleBytes);
    if (!text) return FailWith(text.error());
    if (text->empty()) return FailWith({Code::kCorruptFile, "plan: -f: the text is empty"});
    flags.options.sample_text = std::move(*text);
  }
  const auto stats = ReadStats(flags);
  if (!stats) return FailWith(stats.error());
  Progress progress("planning");
  const auto plan = MakePlanDocument(flags.model, stats->text, stats->path, flags.options, ShowingTime(progress));
  progress.Clear();
  if (!plan) return FailWith(plan.error());

  NoteWhatIsOtherwise(*plan, flags);
  std::string reasons;
  for (const std::string& reason : plan->reasons) reasons += fmt::format("{}\n", OneLine(reason));
  if (flags.out == "-") {
    if (flags.explain) WriteErr(reasons);
    return Finish(WriteOut(plan->json));
  }
  if (const Status written = WriteOutputFile(flags.out, plan->json); !written) return FailWith(written.error());
  if (flags.as_json) return Finish(WriteOut(JsonSummary(*plan, flags, *stats)));
  return Finish(WriteOut((flags.explain ? reasons : std::string()) + Summary(*plan, flags, *stats) +
                         NamedLine(12, "written", flags.out)));
}

}  // namespace npumoe
