// SPDX-License-Identifier: Apache-2.0
// Flags of commands that can run prompts on an NPU.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/npumoe/flags.h"
#include "npumoe/engine.h"

namespace npumoe {

// Whether --tiers means something to a placement.
inline bool HasTiers(std::string_view placement) {
  return placement.starts_with("tiers") || placement == "all" || placement == "npumoe";
}
// What of a model a placement runs on the NPU, and so what has a weight format there.
inline bool HasExperts(std::string_view placement) { return placement != "cpu" && placement != "anemll"; }
inline bool HasAttention(std::string_view placement) { return placement != "cpu" && placement != "naive"; }
// Whether a load may be above a capacity, and whether the objective decides anything.
inline bool HasCapacities(std::string_view placement) { return placement == "ours" || HasTiers(placement); }
inline constexpr char kTiersText[] = "of placements tiers, tiers+groups and all only";

// "coreml", "coreml:ane", ...
std::vector<std::string> CoreMlDevices();
// What --npu may be: "coreml", "coreml:gpu", ..., "sim:m2-max", ...
std::vector<std::string> NpuDevices();
// The same and "m2-max", ...: what a plan can be for.
std::vector<std::string> NpuNames();
// "m2-max", ...
std::vector<std::string> SimulatedNpus();

// Of --max-weight-error: far above any error of a format that is of use.
inline constexpr double kMostWeightError = 1e6;

// Of a plan to be made.
struct PlanFlagOptions {
  const CLI::Option *moe_batch, *order, *max_weight_error, *expert_weights, *attention_weights, *objective, *overflow;
};
// Says that a plan has another length than `option` asked for.
void NoteOtherLength(const CLI::Option& option, uint32_t asked_for, uint32_t got, std::string_view why);
// Sets a MoE batch that was not asked for to at least a chunk, and refuses what `plan` cannot obey.
Status CheckPlanFlags(PlanOptions& plan, const PlanFlagOptions& options);

class NpuFlags {
 public:
  void AddTo(CLI::App& app);
  // Adds what was asked for to `options`. kInvalidArgument for a flag that cannot be obeyed: it needs --npu, Core ML or
  // another placement, or contradicts another.
  Status Fill(EngineOptions& options) const;

  // --npu was not given and must be something: Core ML where there is one, or else the simulated NPU that the plan is for.
  void UseDefault(const std::string& model);
  // Says which lengths that were asked for a plan does not have.
  void NoteWhatIsOtherwise(const PlanLengths& lengths) const;
  bool wanted() const { return !npu_.device.empty(); }
  const std::string& trace_path() const { return trace_path_; }
  // Of commands other than 'npumoe run'.
  Status CheckNoTrace() const { return Refuse({trace_}, "only 'npumoe run' writes one"); }

 private:
  std::vector<CLI::Option*> Options() const;  // all but --npu and --trace

  NpuOptions npu_;
  std::string trace_path_;
  uint32_t cache_gb_ = 0;
  CLI::Option *plan_ = nullptr, *stats_ = nullptr, *placement_ = nullptr, *objective_ = nullptr, *chunk_ = nullptr,
              *batch_ = nullptr, *order_ = nullptr, *expert_weights_ = nullptr, *attention_weights_ = nullptr, *weight_error_ = nullptr,
              *overflow_ = nullptr;
  CLI::Option *cache_ = nullptr, *cache_limit_ = nullptr, *keep_warm_ = nullptr, *spec_ = nullptr, *trace_ = nullptr;
};

// Says on stderr what the NPU did: one line, or with `whole` the table; fallbacks always.
void PrintNpuReport(const RunReport& report, bool whole);

}  // namespace npumoe
