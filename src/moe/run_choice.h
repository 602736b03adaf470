// SPDX-License-Identifier: Apache-2.0
// Where each group runs once the router has spoken: a capacity on the NPU, or the CPU, or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moe/plan.h"

namespace npumoe {

inline constexpr uint32_t kSkipGroup = UINT32_MAX;  // nobody was routed to it: no dispatch
inline constexpr uint32_t kGroupOnCpu = UINT32_MAX - 1;

// What one dispatch of a group's function takes, as the cost model sees it: [capacities], borrowed tables made once per
// plan. Empty: there is no program, so the CPU computes the group.
struct GroupTimes {
  std::span<const double> npu_seconds;
  std::span<const double> npu_joules;  // may be empty: not counted
};
struct CpuTimes {
  double seconds_per_row = 0;     // arithmetic of one row of one expert
  double seconds_per_expert = 0;  // reading one expert's weights, however few the rows
  double watts = 0;               // while it works; 0: its energy is not counted
  // Seconds for `rows` rows of one expert; 0 rows cost nothing.
  double Of(uint32_t rows) const {
    return rows == 0 ? 0 : rows * seconds_per_row + seconds_per_expert;
  }
};

// What something costs the two sides: a way to run a group, or what they do besides.
struct RunOption {
  double npu = 0, cpu = 0;  // seconds
  double joules = 0;
};

struct RunChoice {
  std::vector<uint32_t> capacity_index;  // [groups] index into capacities, kSkipGroup or kGroupOnCpu
  double npu_seconds = 0, cpu_seconds = 0, joules = 0;

  // Scratch of ChooseRun, kept so that later calls allocate nothing.
  std::vector<RunOption> options;      // group after group: on the CPU, then each capacity; none without load
  std::vector<uint32_t> option_begin;  // [groups + 1]
};

// Minimises max(NPU, CPU) seconds, plus `joule_price` seconds for every joule: for a price between the two sides every
// group picks its cheapest option alone; the price is bisected, then single groups are flipped while that helps. With `dynamic` false every group runs at its
// largest capacity (the static plan of the paper). `spill` says whether overflow costs CPU time (exact mode) or
// nothing. `beside` is what both sides have to do in the same time whatever is chosen; it is part of `choice`'s seconds.
// Every option's cost is worked out once. Allocates only until `choice` has grown to the plan's size.
void ChooseRun(const LayerPlan& layer,
               std::span<const uint32_t> loads,  // [n_experts]
               std::span<const GroupTimes> groups, const CpuTimes& cpu, bool dynamic, bool spill,
               const RunOption& beside, double joule_price, RunChoice& choice);

}  // namespace npumoe
