// SPDX-License-Identifier: Apache-2.0
// Plans: what runs on the NPU, what on the CPU, and in which fixed shapes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/go_on.h"
#include "npumoe/result.h"

namespace npumoe {

// Relative error of a stage's outputs that "auto" allows. On the demo model it stands between lut6 (3 %, perplexity of
// held-out text within 0.2 %) and lut4 (13 %, up to 2 %); the tables are in docs/weights.md.
inline constexpr double kMaxWeightError = 0.05;

struct PlanOptions {
  std::string npu = "m2-max";        // a name of DescribeNpus(), or "coreml": this machine's
  uint32_t chunk_tokens = 256;       // prompt tokens of one attention dispatch
  // Tokens whose experts run together, at least a chunk; only placement "ours" uses it.
  uint32_t moe_batch_tokens = 4096;
  // Of placement "ours": "layer-major" takes a batch through attention, then through experts; "wavefront" in two halves,
  // one's experts beside the other's attention; "auto" whichever the objective prefers.
  std::string order = "auto";
  uint32_t prompt_tokens = 4096;     // longest prompt whose attention the plan covers
  uint32_t n_tiers = 3;              // capacities of a layer in the paper's plans
  std::string objective = "time";    // "time", "energy", "edp" (their product)
  std::string placement = "ours";    // one of Placements()
  std::string mode = "exact";        // what happens to overflow: "exact", "prune", "reroute"
  // One of WeightFormats(), or "auto": the one that the objective likes best among those whose measured error is at
  // most max_weight_error.
  std::string expert_weights = "fp16", attention_weights = "fp16";
  double max_weight_error = kMaxWeightError;
  // Measure the errors of all formats even if none is to be chosen; only MakePlanDocument does.
  bool measure_weights = false;
  std::string sample_text;        // whose first tokens the errors are measured on; empty = a built-in paragraph
  bool phimoe_llama_cpp = false;  // as in EngineOptions; a plan is for one reading of PhiMoE
};

// Measured on the model's own layers: root mean square of a stage's output errors over that of the outputs, fp16
// arithmetic included; see docs/weights.md. Infinite when fp16 could not hold an output. 0 where a model has none.
struct WeightErrorRow {
  std::string format;
  double experts = 0, gate_up = 0, down = 0;  // all projections in the format, or these and the others in fp16
  double attention = 0;
  double worst_expert = 0, worst_attention = 0;  // of one sample; the others are root mean squares over them
};

// What a plan made of the lengths that were asked for.
struct PlanLengths {
  uint32_t chunk_tokens = 0, batch_tokens = 0;  // of an attention dispatch; whose experts run together
};

struct PlanDocument {
  std::string json;
  std::vector<std::string> reasons;  // one line a decision, in layer order
  std::string npu, placement, order;
  bool calibrated = true;  // false: no statistics were given, experts count as equally popular
  uint64_t n_programs = 0, program_bytes = 0;
  uint64_t n_npu_experts = 0, n_cpu_experts = 0;     // of all layers
  uint32_t chunk_tokens = 0, prompt_tokens = 0;      // as options have them, or what the model's context leaves of them
  uint32_t batch_tokens = 0;                         // tokens whose experts run together
  uint32_t whole_tokens = 0;  // of a wavefront: batches of up to so many go through as one; 0: none of two chunks
  double expected_seconds = 0, expected_joules = 0;  // simulated, for one batch; see `reasons`
  std::string expert_weights, attention_weights;     // the formats taken
  std::vector<WeightErrorRow> weight_errors;         // of every format, when they were measured
};

// kInvalidArgument names the option that is unknown, out of range or at odds with another; `options.npu` is not looked
// at.
Status CheckPlanOptions(const PlanOptions& options);

// "ours", the paper's baselines and the steps of its ablation.
std::vector<std::string_view> Placements();
std::vector<std::string_view> Orders();  // of placement "ours"
std::vector<std::string_view> Objectives();
std::vector<std::string_view> OverflowModes();

// How programs may hold weights: "fp16", "int8" (a scale per output channel), "lut8", "lut6", "lut4" (indices into
// palettes of fp16 values); docs/weights.md.
std::vector<std::string_view> WeightFormats();

// `stats_json`: what `Calibrate` made, with `stats_name` as the subject of messages; empty = not calibrated. Fails with
// kInvalidArgument naming a bad option, or saying that the statistics are of another model, with kUnsupported for a Core
// ML that is not here, and with kCancelled soon
// after `go_on` said no.
Result<PlanDocument> MakePlanDocument(const std::string& model_path, std::string_view stats_json,
                                      std::string_view stats_name, const PlanOptions& options,
                                      const GoOnFn& go_on = {});

// The NPU that a plan's JSON says it is for; empty when it is no plan.
std::string PlannedNpu(std::string_view json);

// Where statistics and plans of a model lie when no path is given: <model without .gguf>.npumoe/<file>; the same for
// every part of a split model.
std::string SidecarPath(const std::string& model_path, std::string_view file);

}  // namespace npumoe
