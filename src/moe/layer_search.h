// SPDX-License-Identifier: Apache-2.0
// Search for one layer's groups, capacities and CPU experts with the least expected cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "moe/layer_cost.h"
#include "moe/layer_cuts.h"
#include "moe/plan.h"

namespace npumoe {

inline constexpr size_t kMaxMenu = 4;  // capacities a group is compiled for when one is chosen per run
inline constexpr double kLeastGain = 1 - 1e-9;  // a smaller gain could be rounding and loop for ever

// What a layer's plan may look like.
struct GroupRules {
  size_t max_group = 1;          // experts of one program, at least 1
  bool allow_cpu = true;         // experts may be planned for the CPU
  uint32_t n_tiers = 0;          // 0: a menu per group; otherwise one capacity per group, this many in the layer
  uint32_t capacity_step = 32;   // capacities are multiples of this
  uint32_t max_capacity = 4096;  // itself a multiple of capacity_step
};

// One way to plan a layer; attention and scale of the plan are left alone.
struct LayerOption {
  LayerPlan plan;
  LayerCost cost;
  double load_price = 0;  // at which it was found
};

// What a search cut at which prices: searches of the same loads, format and rules share it, whatever their objective.
struct CutAtPrice {
  std::vector<CutRun> cut;
  LayerPlan plan;
};
using KnownCuts = std::map<std::pair<SidePrices, double>, CutAtPrice>;  // by the prices of both sides and of loading

// The plans worth having: none needs more of everything (seconds or joules, as the objective asks, and loading) than
// another; least loading first. A load price
// says what a second of loading programs costs against one of running them (0 when the whole plan's programs stay
// loaded). For every load price and a list of prices between the two sides the experts, sorted by expected load, are
// cut by dynamic programming into runs, each a group at its cheapest capacities or left to the CPU; with `polish` these
// are improved by moving single experts and whole groups while that helps. Deterministic; time grows about linearly
// with the number of experts.
std::vector<LayerOption> SearchLayer(const LayerCoster& coster, const GroupRules& rules, Objective objective,
                                     const RestOfPlan& rest, std::span<const double> load_prices, bool polish,
                                     KnownCuts& known);

// The option with the least Score at the load price; the first of equals.
size_t BestOption(std::span<const LayerOption> options, Objective objective, const RestOfPlan& rest, double load_price);

}  // namespace npumoe
