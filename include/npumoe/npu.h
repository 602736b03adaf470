// SPDX-License-Identifier: Apache-2.0
// What a run on an NPU tells: how many rows went where, how long each side was busy, and why anything fell back.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "npumoe/result.h"

namespace npumoe {

// Counters of one kind of stage ("attention", "experts") over a session. Seconds are simulated or real as RunReport says.
struct StageReport {
  uint64_t programs = 0;    // compiled for this stage
  uint64_t dispatches = 0;  // runs of a program
  uint64_t rows_used = 0;      // rows that carried a token through the NPU
  uint64_t rows_padded = 0;    // rows of zeros beside them
  uint64_t rows_cpu = 0;       // rows of experts or chunks that were placed on the CPU
  uint64_t rows_spilled = 0;   // overflow computed on the CPU
  uint64_t rows_pruned = 0;    // overflow dropped by saliency
  uint64_t rows_rerouted = 0;  // overflow given to another expert of the token
  double npu_seconds = 0, cpu_seconds = 0;  // busy
};

struct RunReport {
  std::string npu;           // spec's name
  bool simulated = true;     // every duration and energy below is of the spec's virtual clock
  StageReport attention, experts;
  double prefill_seconds = 0;   // from the first prompt token to the logits after the last
  double overlap_seconds = 0;   // both sides busy at once
  double npu_joules = 0, cpu_joules = 0;
  std::map<std::string, uint64_t> fallbacks;  // reason -> times; empty when everything ran where it was planned
};

}  // namespace npumoe
