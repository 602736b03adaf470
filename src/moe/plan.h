// SPDX-License-Identifier: Apache-2.0
// Plan: the planner's output. Sorted, versioned, diffable JSON that names what it was made from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "npumoe/result.h"

namespace npumoe {

inline constexpr uint32_t kPlanVersion = 3;

// What goes through all layers together: a batch (its experts once a layer), a chunk, or a batch in two halves, of which
// one is in its experts while the other is in attention.
enum class PrefillOrder { kLayerMajor, kChunkMajor, kWavefront };
enum class OverflowMode { kExact, kPrune, kReroute };
enum class Objective { kTime, kEnergy, kEnergyDelay };
enum class AttentionPlace { kNpu, kCpu };
// How programs hold weights: fp16; int8 with a scale per output channel; indices of 8, 6 or 4 bits into a palette of
// fp16 values per kPaletteRows output channels (see weight_format.h).
enum class WeightFormat { kFp16, kInt8, kLut8, kLut6, kLut4 };

// Whole plans: ours, the paper's baselines, and the steps of its ablation.
enum class Placement {
  kOurs,         // capacity menus, dynamic choice per run, layer-major; attention where the objective prefers it
  kCpu,          // everything on the CPU
  kNaive,        // attention on the CPU; one graph per expert, capacity = chunk (never overflows)
  kAnemll,       // attention on the NPU, experts on the CPU
  kBase,         // attention and one graph per expert, capacity = chunk
  kTiers,        // three static tiers, one graph per expert
  kTiersGroups,  // + same-tier experts grouped
  kAll,          // + load-aware residency: cold experts on the CPU (the paper's plan)
};

// Experts of one layer that share a program: slice i of its channels is experts[i].
struct ExpertGroup {
  std::vector<uint32_t> experts;  // ascending
  // Capacities the program was compiled for, ascending, one function each. One entry = the paper's static tier.
  std::vector<uint32_t> capacities;
};

inline constexpr double kMaxJoulePrice = 1e6;  // seconds a joule: nothing but energy counts
inline constexpr float kMaxExpertScale = 65536;  // more than fp16 could need

struct LayerPlan {
  std::vector<ExpertGroup> groups;    // on the NPU, resident
  std::vector<uint32_t> cpu_experts;  // planned for the CPU, ascending
  AttentionPlace attention = AttentionPlace::kNpu;
  // Up projections are divided by this in the graph and outputs multiplied back; 1 = the calibrated ranges are safe.
  float expert_scale = 1.0f;
};

struct Plan {
  uint32_t version = kPlanVersion;
  std::string model_hash, spec_hash;  // stale when they differ
  std::string stats_hash;             // likewise; empty when experts counted as equally popular
  bool calibrated = true;             // false: stats_hash is empty
  std::string npu;                    // NpuSpec's name
  Placement placement = Placement::kOurs;
  uint32_t chunk_tokens = 256;       // attention chunk; the MoE batch too when chunk-major
  uint32_t moe_batch_tokens = 4096;  // tokens per MoE batch; of both halves in a wavefront
  std::vector<uint32_t> kv_buckets;  // ascending lengths of the cache an attention program is compiled for
  PrefillOrder order = PrefillOrder::kLayerMajor;
  // Of a wavefront: batches of up to so many tokens go through as one, as in order layer-major; 0: every batch of more
  // than one chunk goes in halves.
  uint32_t whole_tokens = 0;
  OverflowMode mode = OverflowMode::kExact;
  Objective objective = Objective::kTime;
  bool per_run_capacity = true;  // choose capacity and placement per run, after the counts are known
  double joule_price = 0;        // seconds that a joule is worth in that choice
  WeightFormat expert_weights = WeightFormat::kFp16, attention_weights = WeightFormat::kFp16;
  std::vector<LayerPlan> layers;  // [n_layers]; a dense layer has no groups

  // Modelled by the planner for one full batch of the calibrated routing; simulated seconds on `npu`.
  double expected_seconds = 0, expected_joules = 0;
};

// Of `n_tokens` that go through all layers together, those of the first half: whole chunks, the odd one with them. All
// of them when the order is another or a single chunk holds them.
uint32_t FirstHalf(PrefillOrder order, uint32_t chunk_tokens, uint32_t n_tokens);
// The same for one batch of a plan, which may take short ones as one: what runs and what is simulated ask this.
uint32_t FirstHalf(const Plan& plan, uint32_t n_tokens);

std::string ToJson(const Plan& plan);
Result<Plan> ParsePlan(std::string_view json, std::string_view name);

// Every expert of every MoE layer exactly once, capacities ascending, ids in range, no length beyond what any plan
// needs (kMaxContext). Names layer and expert otherwise.
Status CheckPlan(const Plan& plan, const ModelConfig& config);

std::string_view ToString(PrefillOrder order);
std::string_view ToString(OverflowMode mode);
std::string_view ToString(Objective objective);
std::string_view ToString(WeightFormat format);
std::string_view ToString(Placement placement);
std::vector<std::string_view> PlacementNames();
std::vector<std::string_view> WeightFormatNames();
std::vector<std::string_view> ObjectiveNames();
std::vector<std::string_view> OverflowModeNames();
std::vector<std::string_view> OrderOptionNames();  // of placement ours

// Options by name; kInvalidArgument lists the known names.
Result<Objective> ParseObjective(std::string_view name);
// An order of placement ours, or nothing for "auto".
Result<std::optional<PrefillOrder>> ParseOrderOption(std::string_view name);
Result<Placement> ParsePlacement(std::string_view name);
Result<OverflowMode> ParseOverflowMode(std::string_view name);
// `option` is the subject of the message.
Result<WeightFormat> ParseWeightFormat(std::string_view name, std::string_view option);

}  // namespace npumoe
