// SPDX-License-Identifier: Apache-2.0
#include "engine/plan_document.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "engine/model_info.h"
#include "engine/npu_device.h"
#include "engine/system.h"
#include "engine/weight_choice.h"
#include "model/json_fields.h"
#include "model/model_hash.h"
#include "moe/stage_graph.h"
#include "moe/uniform_stats.h"
#include "npu/coreml_npu.h"

namespace npumoe {
namespace {


Error Stale(std::string_view name, std::string_view what, std::string_view theirs, std::string_view ours) {
  return MakeError(Code::kUnsupported,
                   "{}: stale: made for {} (hash {}, this one has {}): make it anew with 'npumoe plan'", name, what,
                   theirs.substr(0, 32), ours);
}

Error TooLong(std::string_view name, std::string_view field, uint32_t got, size_t limit, std::string_view of) {
  return MakeError(Code::kUnsupported, "{}: {} is {}, limit {} ({})", name, field, got, limit, of);
}

// Lengths that the model's context or the spec's axes cannot need: buffers are made from them before any program is.
Status CheckLengths(const Plan& plan, std::string_view name, const ModelConfig& config, const NpuSpec& spec) {
  const size_t multiple = spec.last_axis_multiple;
  const size_t context = RoundUp(std::max(config.context_length, 1u), multiple);
  if (plan.chunk_tokens > context) return TooLong(name, "chunk_tokens", plan.chunk_tokens, context, "the context");
  if (plan.moe_batch_tokens > context) {
    return TooLong(name, "moe_batch_tokens", plan.moe_batch_tokens, context, "the context");
  }
  const size_t axis = std::min(spec.max_axis, spec.max_matmul_axis);
  const uint32_t longest = plan.kv_buckets.empty() ? 0 : plan.kv_buckets.back();
  if (longest + plan.chunk_tokens > std::max<size_t>(axis, plan.chunk_tokens)) {
    return TooLong(name, "a cache of kv_buckets with its chunk", longest + plan.chunk_tokens, axis, "axes of the NPU");
  }
  if (longest > context + plan.chunk_tokens) {
    return TooLong(name, "kv_buckets", longest, context + plan.chunk_tokens, "the context and a chunk");
  }
  const size_t rows = std::min(spec.max_axis, RoundUp(plan.moe_batch_tokens, multiple));
  for (const LayerPlan& layer : plan.layers) {
    for (const ExpertGroup& group : layer.groups) {
      if (group.capacities.back() > rows) {
        return TooLong(name, "a capacity", group.capacities.back(), rows, "rows of a MoE batch or of the NPU's axes");
      }
    }
  }
  return Ok{};
}

// Two parts of one checkpoint name the same model.
std::string WithoutPart(std::string stem) {
  constexpr std::string_view kPart = "-00001-of-00001";
  if (stem.size() <= kPart.size()) return stem;
  const size_t at = stem.size() - kPart.size();
  for (size_t i = 0; i < kPart.size(); ++i) {
    const char c = stem[at + i], wanted = kPart[i];
    const bool digit = c >= '0' && c <= '9';
    if (wanted == '0' || wanted == '1' ? !digit : c != wanted) return stem;
  }
  return stem.substr(0, at);
}

}  // namespace

Result<const NpuSpec*> FindSimulatedNpu(std::string_view name) {
  return FindSpec(SimulatedName(name).value_or(name));
}

Result<PlanRequest> ParsePlanOptions(const PlanOptions& options) {
  PlanRequest request;
  request.chunk_tokens = options.chunk_tokens;
  request.moe_batch_tokens = options.moe_batch_tokens;
  request.prompt_tokens = options.prompt_tokens;
  request.n_tiers = options.n_tiers;
  NM_TRY_VAR(request.objective, ParseObjective(options.objective));
  NM_TRY_VAR(request.placement, ParsePlacement(options.placement));
  NM_TRY_VAR(request.order, ParseOrderOption(options.order));
  if (request.order && request.placement != Placement::kOurs) {
    return MakeError(Code::kInvalidArgument, "order {}: only placement ours has a choice, got {}", options.order,
                     options.placement);
  }
  if (request.placement == Placement::kOurs && request.moe_batch_tokens < request.chunk_tokens) {
    return MakeError(Code::kInvalidArgument, "moe batch: {} tokens, wanted at least a chunk of {}",
                     request.moe_batch_tokens, request.chunk_tokens);
  }
  NM_TRY_VAR(request.mode, ParseOverflowMode(options.mode));
  if (options.expert_weights != kAutoWeights) {
    NM_TRY_VAR(request.expert_weights, ParseWeightFormat(options.expert_weights, "expert weights"));
  }
  if (options.attention_weights != kAutoWeights) {
    NM_TRY_VAR(request.attention_weights, ParseWeightFormat(options.attention_weights, "attention weights"));
  }
  if (!(options.max_weight_error > 0)) {
    return MakeError(Code::kInvalidArgument, "max weight error: {}, wanted above 0", options.max_weight_error);
  }
  return request;
}

Result<Plan> LoadPlan(std::string_view text, std::string_view name, const Model& model, const NpuSpec& spec,
                      const RoutingStats* stats) {
  NM_TRY_VAR(Plan plan, ParsePlan(text, name));
  if (plan.npu != spec.name) {
    return MakeError(Code::kUnsupported, "{}: made for npu '{}', wanted '{}': make it anew with 'npumoe plan'", name,
                     plan.npu.substr(0, 40), spec.name);
  }
  const std::string model_hash = ModelHash(model);
  if (plan.model_hash != model_hash) return Stale(name, "another model", plan.model_hash, model_hash);
  if (const std::string hash = SpecHash(spec); plan.spec_hash != hash) {
    return Stale(name, fmt::format("other numbers of npu {}", spec.name), plan.spec_hash, hash);
  }
  if (stats != nullptr && !plan.calibrated) {
    return MakeError(Code::kUnsupported,
                     "{}: stale: made without routing statistics, which there are now: make it anew with 'npumoe plan'",
                     name);
  }
  if (stats != nullptr) {
    if (const std::string hash = StatsHash(*stats); plan.stats_hash != hash) {
      return Stale(name, "other routing statistics", plan.stats_hash, hash);
    }
  }
  if (const Status good = CheckPlan(plan, model.config()); !good.ok()) {
    return MakeError(good.error().code, "{}: {}", name, good.error().message);
  }
  NM_TRY(CheckLengths(plan, name, model.config(), spec));
  return plan;
}

std::string PlannedNpu(std::string_view text) {
  const auto document = ParseJsonObject(text, "plan");
  if (!document.ok()) return {};
  const auto npu = document->find("npu");
  return npu != document->end() && npu->is_string() ? npu->get<std::string>() : std::string();
}

Result<PlanWithReasons> MakePlanFor(const Model& model, const RoutingStats* stats, const NpuSpec& spec,
                                    const PlanRequest& request, const GoOnFn& go_on) {
  const std::string model_hash = ModelHash(model);
  const ModelConfig& config = model.config();
  if (stats != nullptr && stats->model_hash != model_hash) {
    return MakeError(Code::kInvalidArgument,
                     "routing statistics: made of another model (hash {}, this one has {}): calibrate anew",
                     stats->model_hash.substr(0, 32), model_hash);
  }
  RoutingStats uniform;
  if (stats == nullptr) {
    // Both lengths that a plan may ask for, as the planner rounds them; zeros are refused there.
    const uint32_t context = config.context_length == 0 ? kMaxContext : config.context_length;
    std::vector<uint32_t> lengths;
    for (const uint32_t tokens : {request.chunk_tokens, request.moe_batch_tokens, request.prompt_tokens}) {
      lengths.push_back(std::clamp(tokens, 1u, context));
      lengths.push_back(static_cast<uint32_t>(RoundUp(lengths.back(), spec.last_axis_multiple)));
    }
    std::sort(lengths.begin(), lengths.end());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
    uniform = UniformStats(config, lengths);
  }
  NM_TRY_VAR(PlanWithReasons made, MakePlan(config, stats != nullptr ? *stats : uniform, spec, request, go_on));
  made.plan.model_hash = model_hash;
  if (stats == nullptr) {
    made.plan.calibrated = false;
    made.plan.stats_hash.clear();
    made.reasons.insert(made.reasons.begin(),
                        config.n_experts == 0
                            ? "the model has no experts: there is nothing to calibrate"
                            : "no routing statistics: every expert counts as equally popular and no value as too large "
                              "for fp16; 'npumoe calibrate' finds out");
  }
  return made;
}

Status CheckPlanOptions(const PlanOptions& options) {
  NM_TRY(ParsePlanOptions(options));
  return Ok{};
}

std::vector<std::string_view> Placements() { return PlacementNames(); }
std::vector<std::string_view> Orders() { return OrderOptionNames(); }
std::vector<std::string_view> Objectives() { return ObjectiveNames(); }
std::vector<std::string_view> OverflowModes() { return OverflowModeNames(); }
std::vector<std::string_view> WeightFormats() { return WeightFormatNames(); }

namespace {

// Of a simulated NPU, or of this machine's.
Result<NpuSpec> SpecToPlanFor(const std::string& npu) {
  if (IsCoreMlName(npu)) {
    NpuOptions options;
    options.device = npu;
    return SpecOfNpu(options);
  }
  const auto simulated = FindSimulatedNpu(npu);
  if (!simulated.ok()) return MakeError(Code::kInvalidArgument, "{}", simulated.error().message);
  return **simulated;
}

}  // namespace

Result<PlanDocument> MakePlanDocument(const std::string& model_path, std::string_view stats_json,
                                      std::string_view stats_name, const PlanOptions& options, const GoOnFn& go_on) {
  NM_TRY_VAR(const PlanRequest request, ParsePlanOptions(options));
  NM_TRY_VAR(const NpuSpec spec, SpecToPlanFor(options.npu));
  NM_TRY_VAR(const Model model, Model::Open(model_path, {options.phimoe_llama_cpp}));
  std::optional<RoutingStats> stats;
  if (!stats_json.empty()) {
    NM_TRY_VAR(stats, ParseRoutingStats(stats_json, stats_name));
  }
  std::optional<WeightErrors> errors;
  if (options.measure_weights || ChoosesWeights(options)) {
    NM_TRY_VAR(const Tokenizer tokenizer, OpenTokenizer(model, {}));
    NM_TRY_VAR(errors, MeasureWeightErrors(model, SampleTokens(tokenizer, options), CoreCount(), go_on));
  }
  auto made =
      MakePlanWithWeights(model, stats ? &*stats : nullptr, spec, request, options, errors ? &*errors : nullptr, go_on);
  if (!made.ok()) {
    // The planner does not know the file.
    const bool of_stats = made.error().message.starts_with("routing statistics: ");
    return of_stats ? MakeError(made.error().code, "{}: {}", stats_name, made.error().message) : made.error();
  }
  const Plan& plan = made->plan;
  PlanDocument document;
  document.json = ToJson(plan);
  document.reasons = std::move(made->reasons);
  document.npu = plan.npu;
  document.placement = ToString(plan.placement);
  document.order = ToString(plan.order);
  document.calibrated = plan.calibrated;
  document.n_programs = made->n_programs;
  document.program_bytes = made->program_bytes;
  for (const LayerPlan& layer : plan.layers) {
    document.n_cpu_experts += layer.cpu_experts.size();
    for (const ExpertGroup& group : layer.groups) document.n_npu_experts += group.experts.size();
  }
  document.expected_seconds = plan.expected_seconds;
  document.expected_joules = plan.expected_joules;
  document.chunk_tokens = plan.chunk_tokens;
  const uint32_t context = model.config().context_length;
  document.prompt_tokens = context > 0 ? std::min(options.prompt_tokens, context) : options.prompt_tokens;
  document.batch_tokens = plan.moe_batch_tokens;
  document.whole_tokens = plan.whole_tokens;
  document.expert_weights = ToString(plan.expert_weights);
  document.attention_weights = ToString(plan.attention_weights);
  if (errors) document.weight_errors = ErrorRows(*errors);
  return document;
}

std::string SidecarPath(const std::string& model_path, std::string_view file) {
  std::filesystem::path path(model_path);
  if (path.filename().empty()) path = path.parent_path();  // "folder/"
  if (path.filename() == "." || path.filename() == "..") {
    std::error_code error;
    if (const auto whole = std::filesystem::canonical(path, error); !error) path = whole;
  }
  std::string stem = path.string();
  if (stem.ends_with(".gguf")) stem = WithoutPart(stem.substr(0, stem.size() - 5));
  return stem + ".npumoe/" + std::string(file);
}

}  // namespace npumoe
