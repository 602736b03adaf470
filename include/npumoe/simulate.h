// SPDX-License-Identifier: Apache-2.0
// What prefill of a model would take on a machine, under a plan, without its weights: nothing is computed, all times
// and joules are simulated on the named spec.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "npumoe/engine.h"
#include "npumoe/result.h"

namespace npumoe {

// What drift may be, and what run_drift_factor may.
inline constexpr double kMaxDrift = 8, kMaxDriftFactor = 100;

struct SimulateOptions {
  std::string model;  // a shape's name (see MakeModelShapes), or the path of a config.json
  std::string npu = "m2-max";
  uint32_t prompt_tokens = 4096;
  uint32_t chunk_tokens = 256;       // of attention; of everything in the paper's plans
  uint32_t moe_batch_tokens = 4096;  // of "ours"
  std::string order = "auto";        // of "ours": "layer-major", "wavefront", "auto"; see PlanOptions
  // "zipf:S" or "zipf:S,DRIFT": popularity of the expert of rank r is r^-S; DRIFT is the standard deviation of its
  // logarithm from prompt to prompt. Or empty with `stats_json`.
  std::string routing;
  std::string stats_json, stats_path;  // what `npumoe calibrate` wrote; its popularity is used, with stats_drift
  double stats_drift = 0;
  double run_drift_factor = 1;          // prompts drift so many times as much as the calibration's did
  std::vector<std::string> placements;  // names as `npumoe plan` has them; empty = all
  std::string objective = "time";       // time, energy or edp; for "ours"
  std::string expert_weights = "fp16", attention_weights = "fp16";
  uint32_t n_tiers = 3;
  uint32_t n_seeds = 5;  // prompts, each with its own routing
  uint64_t seed = 1;
};

// Over the seeds.
struct SimulatedValue {
  double mean = 0, deviation = 0;
};

struct SimulatedStage {
  std::string name;  // attention, router, experts, pack, scatter, load, output
  double seconds = 0;
};

struct SimulatedZone {
  std::string track, name;    // npu, cpu or pack
  double begin = 0, end = 0;  // seconds
};

struct SimulatedPlacement {
  std::string placement, order, mode, objective;  // order: layer-major, chunk-major, wavefront
  SimulatedValue ttft_seconds;         // until the logits of the prompt's last token
  SimulatedValue joules_per_token;     // NPU and CPU, per prompt token
  SimulatedValue cpu_seconds;          // busy
  SimulatedValue npu_seconds;          // busy
  SimulatedValue padding;              // share of the rows that programs computed that are zeros
  SimulatedValue dropped;              // share of all assignments (tokens * top_k * layers) that nobody computed
  SimulatedValue spilled;              // share above a capacity, computed by the CPU
  SimulatedValue on_npu;               // share computed by the NPU
  SimulatedValue gap;                  // seconds over the lower bound's, less 1; see docs/device_model.md
  std::vector<SimulatedStage> stages;  // means; they add up to ttft_seconds
  double floor_seconds = 0;            // of all dispatches, within the stages
  double n_dispatches = 0;             // of expert groups
  uint64_t n_programs = 0, program_bytes = 0;
  double planned_seconds = 0, planned_joules = 0;  // of one batch, as the planner expected them
  std::vector<std::vector<uint32_t>> tiers;        // [layers][n_experts] largest capacity, 0 = on the CPU
  std::vector<SimulatedZone> zones;                // one layer of the first seed
};

struct SimulateReport {
  std::string model, npu, npu_title, routing;
  uint32_t prompt_tokens = 0, chunk_tokens = 0, n_seeds = 0, n_layers = 0, n_experts = 0, top_k = 0;
  std::vector<SimulatedPlacement> placements;
  std::vector<std::vector<double>> popularity;  // [layers][n_experts] share of the first seed's tokens
};

// Reads and checks what the options name: in milliseconds, unless statistics are large. kInvalidArgument, kNotFound or
// kCorruptFile name the option or file.
Status CheckSimulateOptions(const SimulateOptions& options);

// Fails as CheckSimulateOptions does. `progress` hears how many of the n_seeds prompts
// are done, also while none is: often enough that its false stops a large model soon.
Result<SimulateReport> Simulate(const SimulateOptions& options, const ProgressFn& progress);

}  // namespace npumoe
