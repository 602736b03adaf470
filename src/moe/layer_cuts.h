// SPDX-License-Identifier: Apache-2.0
// Cuts of a layer's experts, sorted by load, into runs that become groups: a dynamic program for many prices at once.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moe/layer_cost.h"

namespace npumoe {

// What a search pays for either side: a linear stand-in for the objective, in which groups are independent.
struct SidePrices {
  double npu_second = 0, npu_joule = 0, cpu_second = 0;
  double load_second = 0;  // of loading programs, before it is multiplied by the load price
  double Npu(const Cost& cost) const { return npu_second * cost.seconds + npu_joule * cost.joules; }
  double Load(const Cost& cost) const { return load_second * cost.seconds + npu_joule * cost.joules; }
  auto operator<=>(const SidePrices&) const = default;
};

// Experts order[first] to order[last - 1].
struct CutRun {
  size_t first = 0, last = 0;
  bool on_cpu = false;
  bool operator==(const CutRun&) const = default;
};

// Immutable after construction; borrows the coster and the order.
class LayerCuts {
 public:
  // `order`: experts, hottest first. `ladder`: capacities to price, ascending.
  LayerCuts(const LayerCoster& coster, std::span<const uint32_t> order, std::span<const uint32_t> ladder,
            size_t max_group, bool allow_cpu);

  // For every load price the cheapest cut into runs, hottest first, when a group may have the ladder's `capacities`
  // (indices): each run pays for its best capacity, per scenario or once and for all as the coster chooses.
  std::vector<std::vector<CutRun>> Cheapest(const SidePrices& prices, std::span<const size_t> capacities,
                                            std::span<const double> load_prices) const;

 private:
  static constexpr uint32_t kScenarios = LoadScenarios::kCount;

  size_t At(size_t atom, size_t row) const { return (atom * (n_capacities_ + 1) + row) * kScenarios; }
  double RunPrice(size_t begin, size_t end, const SidePrices& prices, std::span<const size_t> capacities,
                  std::span<const double> npu) const;

  const LayerCoster& coster_;
  std::span<const uint32_t> order_;
  size_t max_group_, n_capacities_;
  bool allow_cpu_;
  size_t atom_ = 1, n_atoms_ = 0;  // experts that are never cut apart, and how many such units there are
  // CPU seconds of the first `atom` units: per capacity of their overflow, and (the last row) of all their load.
  std::vector<double> sums_;       // [n_atoms + 1, n_capacities + 1, kScenarios]
  std::vector<double> fixed_cpu_;  // [n_atoms] when the unit is planned for the CPU
  std::vector<Cost> dispatch_;     // [max_group / atom + 1, n_capacities] of groups of so many units
  std::vector<Cost> load_;         // [max_group / atom + 1]
};

}  // namespace npumoe
