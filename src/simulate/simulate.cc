// SPDX-License-Identifier: Apache-2.0
#include "npumoe/simulate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/check.h"
#include "base/files.h"
#include "model/config.h"
#include "model/random_model.h"
#include "moe/planner.h"
#include "npu/spec.h"
#include "simulate/prefill_model.h"
#include "simulate/routing_source.h"

namespace npumoe {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr uint32_t kMaxSeeds = 10'000;
constexpr uint64_t kMaxLoads = uint64_t{1} << 23;  // of one prompt: 32 MiB
constexpr uint64_t kMaxSteps = 4096;               // chunks of a prompt: time grows with their square
// Calibration reads other prompts than those that are timed.
constexpr uint32_t kCalibrationPrompts = 8;
constexpr uint64_t kCalibrationSeed = uint64_t{1} << 40;

Result<ModelConfig> ReadConfig(const std::string& model) {
  if (auto shape = ShapeByName(model)) return shape;
  std::error_code ignored;
  std::string path = model;
  if (std::filesystem::is_directory(path, ignored)) path += "/config.json";
  if (!std::filesystem::exists(path, ignored)) {
    std::string names;
    for (const std::string_view name : ShapeNames()) names += (names.empty() ? "" : ", ") + std::string(name);
    return MakeError(Code::kNotFound, "model {}: neither a file nor a known shape: {}", model, names);
  }
  NM_TRY_VAR(const std::string json, ReadFile(path, kMaxConfigBytes));
  return ConfigFromHuggingFace(json, "", path, {});
}

struct Samples {
  std::vector<double> values;
  SimulatedValue Value() const {
    SimulatedValue out;
    for (const double v : values) out.mean += v / static_cast<double>(values.size());
    double squares = 0;
    for (const double v : values) squares += (v - out.mean) * (v - out.mean);
    if (values.size() > 1) out.deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
    return out;
  }
};

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// What one placement's seeds add up to.
class Tally {
 public:
  void Add(const SimulatedPrefill& prefill, uint32_t n_tokens) {
    const PrefillTimes& t = prefill.times;
    const PrefillRows& r = prefill.rows;
    ttft_.values.push_back(t.Seconds());
    joules_.values.push_back(t.joules / n_tokens);
    cpu_.values.push_back(t.cpu_busy);
    npu_.values.push_back(t.npu_busy);
    padding_.values.push_back(Share(r.padded, r.padded + r.npu));
    dropped_.values.push_back(Share(r.dropped, r.assigned));
    spilled_.values.push_back(Share(r.spilled, r.assigned));
    on_npu_.values.push_back(Share(r.npu, r.assigned));
    gap_.values.push_back(t.bound > 0 ? std::max(0.0, t.Seconds() / t.bound - 1) : 0);
    sum_.attention += t.attention, sum_.router += t.router, sum_.experts += t.experts, sum_.pack += t.pack;
    sum_.scatter += t.scatter, sum_.load += t.load, sum_.output += t.output, sum_.floors += t.floors;
    n_dispatches_ += static_cast<double>(prefill.n_dispatches);
    if (ttft_.values.size() > 1) return;
    for (const LayerZone& zone : prefill.zones) zones_.push_back({zone.track, zone.name, zone.begin, zone.end});
  }

  void Write(SimulatedPlacement& out) {
    const double n = static_cast<double>(ttft_.values.size());
    out.ttft_seconds = ttft_.Value(), out.joules_per_token = joules_.Value(), out.cpu_seconds = cpu_.Value();
    out.npu_seconds = npu_.Value(), out.padding = padding_.Value(), out.dropped = dropped_.Value();
    out.spilled = spilled_.Value(), out.on_npu = on_npu_.Value(), out.gap = gap_.Value();
    out.stages = {{"attention", sum_.attention / n}, {"router", sum_.router / n},   {"experts", sum_.experts / n},
                  {"pack", sum_.pack / n},           {"scatter", sum_.scatter / n}, {"load", sum_.load / n},
                  {"output", sum_.output / n}};
    out.floor_seconds = sum_.floors / n;
    out.n_dispatches = n_dispatches_ / n;
    out.zones = std::move(zones_);
  }

 private:
  Samples ttft_, joules_, cpu_, npu_, padding_, dropped_, spilled_, on_npu_, gap_;
  PrefillTimes sum_;
  double n_dispatches_ = 0;
  std::vector<SimulatedZone> zones_;
};

// Largest capacity of every expert; 0 on the CPU.
std::vector<std::vector<uint32_t>> TiersOf(const Plan& plan, uint32_t n_experts) {
  std::vector<std::vector<uint32_t>> tiers(plan.layers.size(), std::vector<uint32_t>(n_experts));
  for (size_t layer = 0; layer < plan.layers.size(); ++layer) {
    for (const ExpertGroup& group : plan.layers[layer].groups) {
      for (const uint32_t expert : group.experts) tiers[layer][expert] = group.capacities.back();
    }
  }
  return tiers;
}

Status CheckOptions(const SimulateOptions& o, const ModelConfig& config, const NpuSpec& spec) {
  if (o.n_seeds == 0 || o.n_seeds > kMaxSeeds) {
    return MakeError(Code::kInvalidArgument, "seeds {}: wanted 1 to {}", o.n_seeds, kMaxSeeds);
  }
  const uint32_t context = config.context_length == 0 ? kMaxContext : config.context_length;
  if (o.prompt_tokens == 0 || o.prompt_tokens > context) {
    return MakeError(Code::kInvalidArgument, "prompt {}: wanted 1 to {} tokens, the context of {}", o.prompt_tokens,
                     context, o.model);
  }
  if (o.chunk_tokens == 0 || o.chunk_tokens > context || o.chunk_tokens % spec.last_axis_multiple != 0) {
    return MakeError(Code::kInvalidArgument,
                     "chunk {}: wanted a multiple of {}, to which {} pads rows, of up to {} tokens, the context of {}",
                     o.chunk_tokens, spec.last_axis_multiple, spec.name, context, o.model);
  }
  if (o.moe_batch_tokens % o.chunk_tokens != 0) {
    return MakeError(Code::kInvalidArgument, "MoE batch {}: wanted a multiple of the chunk of {} tokens",
                     o.moe_batch_tokens, o.chunk_tokens);
  }
  const auto in_range = [](double value, double limit) { return value >= 0 && value <= limit; };  // false for NaN
  if (!in_range(o.stats_drift, kMaxDrift) || !in_range(o.run_drift_factor, kMaxDriftFactor)) {
    return MakeError(Code::kInvalidArgument, "drift {} and its factor {}: wanted 0 to {} and 0 to {}", o.stats_drift,
                     o.run_drift_factor, kMaxDrift, kMaxDriftFactor);
  }
  const uint64_t n_steps = (o.prompt_tokens + o.chunk_tokens - 1) / o.chunk_tokens;
  if (n_steps > kMaxSteps) {
    return MakeError(Code::kInvalidArgument, "prompt {}: {} chunks of {} tokens, limit {}", o.prompt_tokens, n_steps,
                     o.chunk_tokens, kMaxSteps);
  }
  const uint64_t n_loads = n_steps * config.n_layers * config.n_experts;
  if (n_loads > kMaxLoads) {
    return MakeError(
        Code::kInvalidArgument,
        "prompt {}: {} chunks of {} layers of {} experts are {} loads, limit {}: wanted longer chunks or a "
        "shorter prompt",
        o.prompt_tokens, n_steps, config.n_layers, config.n_experts, n_loads, kMaxLoads);
  }
  return Ok{};
}

// The request of one placement. The paper's plans drop what goes over a capacity; ours never drops.
Result<PlanRequest> RequestFor(const SimulateOptions& o, std::string_view placement) {
  PlanRequest request;
  NM_TRY_VAR(request.placement, ParsePlacement(placement));
  NM_TRY_VAR(request.order, ParseOrderOption(o.order));  // of ours alone
  NM_TRY_VAR(request.objective, ParseObjective(o.objective));
  NM_TRY_VAR(request.expert_weights, ParseWeightFormat(o.expert_weights, "expert-weights"));
  NM_TRY_VAR(request.attention_weights, ParseWeightFormat(o.attention_weights, "attention-weights"));
  const bool ours = request.placement == Placement::kOurs;
  request.mode = ours ? OverflowMode::kExact : OverflowMode::kPrune;
  if (!ours) request.objective = Objective::kTime;
  request.chunk_tokens = o.chunk_tokens;
  request.moe_batch_tokens = o.moe_batch_tokens;
  request.prompt_tokens = o.prompt_tokens;
  request.n_tiers = o.n_tiers;
  request.names_stats = false;  // nobody keeps these plans
  return request;
}

// Chunk lengths that plans ask for: the chunk and the batch, with doublings between.
std::vector<uint32_t> CalibrationLengths(const SimulateOptions& o) {
  std::vector<uint32_t> lengths{o.chunk_tokens};
  for (uint64_t length = uint64_t{2} * o.chunk_tokens; length <= o.prompt_tokens; length *= 2) {
    lengths.push_back(static_cast<uint32_t>(length));
  }
  return lengths;
}

Result<RoutingStats> StatsFor(const SimulateOptions& o, const ModelConfig& config) {
  NM_TRY_VAR(RoutingStats stats, ParseRoutingStats(o.stats_json, o.stats_path));
  if (stats.n_layers != config.n_layers || stats.n_experts != config.n_experts || stats.top_k != config.top_k) {
    return MakeError(Code::kUnsupported, "{}: {} layers of {} experts, top-{}; the model has {} of {}, top-{}",
                     o.stats_path, stats.n_layers, stats.n_experts, stats.top_k, config.n_layers, config.n_experts,
                     config.top_k);
  }
  return stats;
}

// What the options name, read and checked.
struct Setup {
  ModelConfig config;
  const NpuSpec* spec = nullptr;
  ZipfRouting zipf;
  RoutingStats given;  // where the options hold statistics
  std::vector<std::string> placements;
  std::vector<PlanRequest> requests;  // [placements]
};

Result<Setup> SetUp(const SimulateOptions& o) {
  Setup setup;
  NM_TRY_VAR(setup.config, ReadConfig(o.model));
  if (setup.config.n_experts == 0) {  // a wrong name, or a file that is not for this
    const Code code = ShapeByName(o.model).ok() ? Code::kInvalidArgument : Code::kUnsupported;
    return MakeError(code, "model {}: no experts to place", o.model);
  }
  NM_TRY_VAR(setup.spec, FindSpec(o.npu));
  NM_TRY(CheckOptions(o, setup.config, *setup.spec));
  if (o.stats_json.empty()) {
    NM_TRY_VAR(setup.zipf, ParseZipf(o.routing));
  } else {
    NM_TRY_VAR(setup.given, StatsFor(o, setup.config));
    setup.zipf.drift = o.stats_drift;
  }
  setup.placements = o.placements;
  if (setup.placements.empty()) {
    for (const std::string_view name : PlacementNames()) setup.placements.emplace_back(name);
  }
  for (const std::string& name : setup.placements) {
    NM_TRY_VAR(PlanRequest request, RequestFor(o, name));
    setup.requests.push_back(std::move(request));
  }
  return setup;
}

}  // namespace

Status CheckSimulateOptions(const SimulateOptions& options) {
  const auto setup = SetUp(options);
  return setup ? Status(Ok{}) : Status(setup.error());
}

Result<SimulateReport> Simulate(const SimulateOptions& o, const ProgressFn& progress) {
  NM_TRY_VAR(const Setup setup, SetUp(o));
  const ModelConfig& config = setup.config;
  const NpuSpec* const spec = setup.spec;
  // Told to stop? Asked all along: one seed of a large model takes seconds.
  uint32_t n_done = 0;
  bool stopped = false;
  const auto go_on = [&] {
    stopped = stopped || (progress && !progress(n_done, o.n_seeds));
    return !stopped;
  };
  const Error told_to_stop{Code::kCancelled, "simulate: stopped by the caller"};
  const RoutingSource calibrated(config, setup.zipf, o.stats_json.empty() ? nullptr : &setup.given);
  const RoutingSource source = calibrated.WithDrift(setup.zipf.drift * o.run_drift_factor);
  const std::vector<uint32_t> lengths = CalibrationLengths(o);
  // Drawn even when statistics were given: those lack the lengths that plans ask for.
  const uint32_t calibration_tokens = std::max(o.prompt_tokens, o.chunk_tokens);
  const RoutingStats stats =
      calibrated.Calibrate(o.seed + kCalibrationSeed, kCalibrationPrompts, calibration_tokens, lengths, go_on);
  if (stopped) return told_to_stop;

  SimulateReport report{o.model,          spec->name,     spec->title, o.stats_json.empty() ? o.routing : o.stats_path,
                        o.prompt_tokens,  o.chunk_tokens, o.n_seeds,   config.n_layers,
                        config.n_experts, config.top_k,   {},          {}};
  std::vector<Plan> plans;
  for (size_t i = 0; i < setup.requests.size(); ++i) {
    const PlanRequest& request = setup.requests[i];
    if (!go_on()) return told_to_stop;
    NM_TRY_VAR(PlanWithReasons made, MakePlan(config, stats, *spec, request, go_on));
    SimulatedPlacement placement;
    placement.placement = setup.placements[i], placement.mode = ToString(request.mode),
    placement.objective = ToString(request.objective);
    placement.order = ToString(made.plan.order);
    placement.n_programs = made.n_programs, placement.program_bytes = made.program_bytes;
    placement.planned_seconds = made.plan.expected_seconds, placement.planned_joules = made.plan.expected_joules;
    placement.tiers = TiersOf(made.plan, config.n_experts);
    report.placements.push_back(std::move(placement));
    plans.push_back(std::move(made.plan));
  }
  std::vector<Tally> tallies(plans.size());
  for (uint32_t seed = 0; seed < o.n_seeds; ++seed) {
    const RoutedPrompt prompt = source.Prompt(o.seed + seed, o.prompt_tokens, o.chunk_tokens);
    for (size_t i = 0; i < plans.size(); ++i) {
      if (!go_on()) return told_to_stop;
      tallies[i].Add(SimulatePrefill(config, plans[i], *spec, prompt, config.n_layers / 2), o.prompt_tokens);
    }
    for (uint32_t layer = 0; layer < config.n_layers && seed == 0; ++layer) {
      std::vector<double>& shares = report.popularity.emplace_back();
      if (!config.IsMoeLayer(layer)) continue;
      for (const uint32_t load : prompt.Loads(layer, 0, o.prompt_tokens)) {
        shares.push_back(static_cast<double>(load) / (static_cast<double>(o.prompt_tokens) * config.top_k));
      }
    }
    n_done = seed + 1;
    if (!go_on()) return told_to_stop;
  }
  for (size_t i = 0; i < plans.size(); ++i) tallies[i].Write(report.placements[i]);
  return report;
}

}  // namespace npumoe
