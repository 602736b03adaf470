// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/npu_flags.h"

#include <fmt/core.h>

#include <algorithm>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/machine.h"
#include "apps/npumoe/npu_report.h"
#include "apps/npumoe/text.h"
#include "npumoe/calibrate.h"
#include "npumoe/npu.h"
#include "npumoe/programs.h"

namespace npumoe {

namespace {

// "NPU_CHUNK" of --npu-chunk.
std::string VariableOf(const CLI::Option& option) {
  std::string name = option.get_name().substr(2);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(c - 'a' + 'A');
  return name;
}

}  // namespace

std::vector<std::string> CoreMlDevices() { return {"coreml", "coreml:ane", "coreml:gpu", "coreml:cpu"}; }

std::vector<std::string> NpuDevices() {
  std::vector<std::string> devices = CoreMlDevices();
  for (const NpuDescription& npu : DescribeNpus()) devices.push_back("sim:" + npu.name);
  return devices;
}

std::vector<std::string> NpuNames() {
  std::vector<std::string> names = SimulatedNpus();
  for (std::string& device : NpuDevices()) names.push_back(std::move(device));
  return names;
}

std::vector<std::string> SimulatedNpus() {
  std::vector<std::string> names;
  for (const NpuDescription& npu : DescribeNpus()) names.push_back(npu.name);
  return names;
}

void NoteOtherLength(const CLI::Option& option, uint32_t asked_for, uint32_t got, std::string_view why) {
  if (option.count() == 0 || asked_for == got) return;
  Note(fmt::format("note: {} {}: planned with {}: {}", NameOf(option), asked_for, got, why));
}

Status CheckPlanFlags(PlanOptions& plan, const PlanFlagOptions& options) {
  if (options.moe_batch->count() == 0) plan.moe_batch_tokens = std::max(plan.moe_batch_tokens, plan.chunk_tokens);
  if (const Status good = CheckPlanOptions(plan); !good) return good;
  if (plan.placement != "ours") {
    const Status good =
        Refuse({options.moe_batch, options.order}, fmt::format("of placement ours only, got {}", plan.placement));
    if (!good) return good;
  }
  struct Use {
    bool is_used;
    const CLI::Option* option;
    std::string_view why;
  };
  // Where there are no rows above a capacity the default says what happens to them, and nothing else can.
  const bool is_exact = options.overflow->count() > 0 && options.overflow->results().back() == "exact";
  for (const Use& use : {Use{HasExperts(plan.placement), options.expert_weights, "runs experts on the CPU"},
                         Use{HasAttention(plan.placement), options.attention_weights, "runs attention on the CPU"},
                         Use{HasCapacities(plan.placement), options.objective, "leaves nothing to choose"},
                         Use{HasCapacities(plan.placement) || is_exact, options.overflow, "has no rows above a capacity"}}) {
    if (use.is_used) continue;
    const Status good = Refuse({use.option}, fmt::format("placement {} {}", plan.placement, use.why));
    if (!good) return good;
  }
  if (plan.expert_weights != "auto" && plan.attention_weights != "auto") {
    const Status good = Refuse({options.max_weight_error}, "wants weights that are auto");
    if (!good) return good;
  }
  return Ok{};
}

void NpuFlags::AddTo(CLI::App& app) {
  const std::string group = "NPU";
  auto* device = app.add_option(
      "--npu", npu_.device,
      "prompts run on this NPU: coreml, coreml:gpu, coreml:cpu, or sim:NAME simulates one ('npumoe doctor' lists "
      "them)");
  BindEnvironment(device->take_last()->check(SilentMemberOf(NpuDevices()))->group(group), "NPU");
  plan_ = app.add_option("--plan", npu_.plan_path, "plan to run; default: the model's own, or one made now");
  stats_ =
      app.add_option("--routing-stats", npu_.stats_path, "what 'npumoe calibrate' wrote; default: the model's own");
  placement_ = app.add_option("--placement", npu_.plan.placement, "for a plan made now, " + OneOf(Placements()));
  objective_ = app.add_option("--objective", npu_.plan.objective, "for a plan made now, " + OneOf(Objectives()));
  chunk_ = app.add_option("--npu-chunk", npu_.plan.chunk_tokens, "for a plan made now: tokens of an attention dispatch")
               ->check(WholeIn(1, kMaxChunkTokens));
  batch_ = app.add_option("--moe-batch", npu_.plan.moe_batch_tokens,
                          "for a plan made now: tokens whose experts run together")
               ->check(WholeIn(1, kMaxChunkTokens));
  order_ = app.add_option("--order", npu_.plan.order,
                          "for a plan made now, of placement ours, " + OneOf(Orders()) +
                              " (wavefront: a batch in two halves; auto: by objective)");
  expert_weights_ = app.add_option("--expert-weights", npu_.plan.expert_weights,
                                   "for a plan made now: fp16, int8, lut8, lut6, lut4, or auto: by measured error");
  attention_weights_ = app.add_option("--attention-weights", npu_.plan.attention_weights, "likewise");
  weight_error_ = app.add_option("--max-weight-error", npu_.plan.max_weight_error,
                                 fmt::format("relative error of outputs that auto allows [{}]", kMaxWeightError))
                      ->check(NumberAbove(0, kMostWeightError));
  overflow_ = app.add_option("--overflow", npu_.mode,
                             "rows above a capacity: exact computes them on the CPU, prune drops them, reroute gives "
                             "them to other experts; default: the plan's");
  placement_->check(MemberOf(Placements()));
  objective_->check(MemberOf(Objectives()));
  order_->check(MemberOf(Orders()));
  overflow_->check(MemberOf(OverflowModes()));
  auto formats = WeightFormats();
  formats.push_back("auto");
  for (CLI::Option* option : {expert_weights_, attention_weights_}) option->check(MemberOf(formats));
  for (CLI::Option* option : Options()) {
    option->take_last()->group(group);
    BindEnvironment(option, VariableOf(*option));
  }
  auto* cache =
      app.add_option("--cache", npu_.cache_folder, "folder of compiled programs [" + DefaultCacheFolder() + "]");
  BindEnvironment(cache->take_last()->group(group), "CACHE");
  cache_ = cache;
  auto* limit = app.add_option("--cache-gb", cache_gb_, fmt::format("most GiB of it [{}]", kDefaultCacheBytes >> 30));
  limit->check(WholeIn(1, 1u << 20));
  auto* warm = app.add_option("--keep-warm", npu_.keep_warm_seconds,
                              "with coreml: keep the NPU awake for so many seconds after its last use");
  warm->check(NumberIn(0.0, 86400.0));
  auto* spec = app.add_option("--npu-spec", npu_.spec,
                              "with coreml: plan with the numbers of this NPU, not of this machine");
  spec->check(SilentMemberOf(SimulatedNpus()));
  cache_limit_ = limit, keep_warm_ = warm, spec_ = spec;
  for (CLI::Option* option : {limit, warm, spec}) {
    BindEnvironment(option->take_last()->group(group), VariableOf(*option));
  }
  trace_ = app.add_option("--trace", trace_path_, "write what ran where and when, for Perfetto");
  trace_->take_last()->group(group);
}

std::vector<CLI::Option*> NpuFlags::Options() const {
  return {plan_,  stats_, placement_,      objective_,         chunk_,
          batch_, order_, expert_weights_, attention_weights_, weight_error_, overflow_};
}

Status NpuFlags::Fill(EngineOptions& options) const {
  for (const CLI::Option* option : Options()) {
    if (option->count() == 0) continue;
    if (!wanted() && !IsTyped(*option)) continue;  // a variable, set for the runs with an NPU
    if (!wanted()) return Error{Code::kInvalidArgument, option->get_name() + ": wants --npu too"};
    const bool is_making = option != plan_ && option != stats_ && option != overflow_;
    if (is_making && plan_->count() > 0) {
      return Error{Code::kInvalidArgument,
                   fmt::format("{} and {}: the plan says it already", NameOf(*option), NameOf(*plan_))};
    }
  }
  if (!wanted() || npu_.device.starts_with("sim:")) {
    const Status good = Refuse({cache_, cache_limit_, keep_warm_, spec_},
                               fmt::format("wants --npu coreml{}", wanted() ? ", got " + npu_.device : ""));
    if (!good) return good;
  }
  options.npu = npu_;
  options.npu.cache_bytes = uint64_t{cache_gb_} << 30;
  if (const std::string self = ProgramPath(); !self.empty()) options.npu.compiler = {self, kCompilePackage};
  // Asked for a plan of this kind: the model's own is not it.
  options.npu.make_plan = placement_->count() + objective_->count() + chunk_->count() + batch_->count() +
                              order_->count() + expert_weights_->count() + attention_weights_->count() + weight_error_->count() >
                          0;
  if (options.npu.make_plan) {
    const Status good = CheckPlanFlags(
        options.npu.plan, {batch_, order_, weight_error_, expert_weights_, attention_weights_, objective_, overflow_});
    if (!good) return NamingVariables(good, {placement_, chunk_, batch_, order_, expert_weights_, attention_weights_});
  }
  options.trace = !trace_path_.empty();
  return Ok{};
}

void NpuFlags::NoteWhatIsOtherwise(const PlanLengths& lengths) const {
  if (!wanted()) return;
  const char* const why = "what the context and the NPU allow";
  NoteOtherLength(*chunk_, npu_.plan.chunk_tokens, lengths.chunk_tokens, why);
  if (npu_.plan.placement == "ours") {
    NoteOtherLength(*batch_, npu_.plan.moe_batch_tokens, lengths.batch_tokens, why);
  }
}

void NpuFlags::UseDefault(const std::string& model) {
  if (!NpuBackends().empty()) {
    npu_.device = NpuBackends().front();
  } else {
    const auto plan =
        ReadAll(npu_.plan_path.empty() ? SidecarPath(model, "plan.json") : npu_.plan_path, kMaxStatsBytes);
    const std::string planned = plan ? PlannedNpu(*plan) : "";
    npu_.device = "sim:" + (planned.empty() ? npu_.plan.npu : planned);
  }
}

void PrintNpuReport(const RunReport& report, bool whole) {
  if (whole) {
    WriteErr(FormatNpuReport(report));
    return;
  }
  Note(NpuSummary(report));
  if (!report.plan_refused.empty()) Note("note: the model's own plan is not taken: " + OneLine(report.plan_refused));
  if (!report.note.empty()) Note("note: " + OneLine(report.note));
  for (const auto& [reason, times] : report.fallbacks) {
    Note(fmt::format("note: fell back to the CPU {} x: {}", times, OneLine(reason)));
  }
}

}  // namespace npumoe
