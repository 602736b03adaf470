// SPDX-License-Identifier: Apache-2.0
// What a run on an NPU tells: how many rows went where, how long each side was busy, and why anything fell back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace npumoe {

// Counters of one kind of stage of one layer. Seconds are simulated or real as RunReport::simulated says.
struct StageReport {
  uint64_t programs = 0;                    // compiled for this stage
  uint64_t loads = 0;                       // programs loaded again after they had to make room
  uint64_t dispatches = 0;                  // runs of a program
  uint64_t rows_used = 0;                   // rows that carried a token through the NPU
  uint64_t rows_padded = 0;                 // rows of zeros beside them
  uint64_t rows_cpu = 0;                    // rows of experts or chunks that ran on the CPU
  uint64_t rows_spilled = 0;                // overflow computed on the CPU
  uint64_t rows_pruned = 0;                 // overflow dropped by saliency
  uint64_t rows_rerouted = 0;               // overflow given to another expert of the token; counted again where it ran
  double npu_seconds = 0, cpu_seconds = 0;  // busy

  StageReport& operator+=(const StageReport& other);
};

struct LayerReport {
  StageReport attention, experts;
};

// Counts of all prefills of a session so far.
struct RunReport {
  std::string npu;                  // the spec's name
  bool simulated = true;            // durations and energy below are of the spec's virtual clock
  std::string note;                 // what a user should know about how the device ran; empty for nothing
  std::string plan_refused;         // why the model's own plan was not taken; empty when it was, or there is none
  std::string plan;                 // where the plan came from, "made for this run" or a path
  std::string order;                // of its prefill: layer-major, chunk-major, wavefront (when a batch went in halves)
  std::vector<LayerReport> layers;  // [n_layers]
  double prefill_seconds = 0;       // from the first prompt token to the logits after the last
  uint64_t unfinished = 0;          // prefills that were stopped or failed: the figures hold what they did until then
  double overlap_seconds = 0;       // both sides busy at once
  double load_wait_seconds = 0;     // both sides idle until a program was loaded
  double npu_joules = 0, cpu_joules = 0;  // simulated runs only
  std::optional<double> process_joules;    // real runs: of this process, as the system counts it; empty where it does not
  std::optional<uint64_t> process_cycles;  // likewise, cycles of the CPU
  std::map<std::string, uint64_t> fallbacks;  // reason -> times; empty when everything ran where it was planned

  StageReport Attention() const;  // sum over layers
  StageReport Experts() const;
};

// Where a device means to run an op.
struct OpPlacement {
  std::string op;              // MIL's name: "conv"
  std::string output;          // name of its first output
  std::string preferred;       // "NPU", "GPU", "CPU"; empty when nobody says (constants)
  bool npu_supported = false;  // whether the op could run on the NPU at all
  double cost = 0;             // share of the function's estimated time, 0 to 1
};

// One number of an NPU's description, as the simulated device and the planner use it.
struct NpuProperty {
  std::string name, unit;
  double value = 0;
  std::string source;  // "measured: ...", "published: ...", "derived: ...", "assumed: ..."; empty for a plain count
};

struct NpuDescription {
  std::string name, title;  // "m2-max", "Apple M2 Max"
  std::vector<NpuProperty> properties;
};

// Machines that can be simulated.
std::vector<NpuDescription> DescribeNpus();

// Drivers of real NPUs in this build, by name; none on Linux.
std::vector<std::string> NpuBackends();

}  // namespace npumoe
