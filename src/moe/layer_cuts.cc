// SPDX-License-Identifier: Apache-2.0
#include "moe/layer_cuts.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"

namespace npumoe {
namespace {

constexpr size_t kMaxAtoms = 64;  // units that are cut between
constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

LayerCuts::LayerCuts(const LayerCoster& coster, std::span<const uint32_t> order, std::span<const uint32_t> ladder,
                     size_t max_group, bool allow_cpu)
    : coster_(coster),
      order_(order),
      max_group_(std::min(max_group, order.size())),
      n_capacities_(ladder.size()),
      allow_cpu_(allow_cpu) {
  const size_t n = order.size();
  atom_ = std::min((n + kMaxAtoms - 1) / kMaxAtoms, max_group_);
  while (max_group_ < kMaxAtoms && max_group_ % atom_ != 0) --atom_;  // full groups stay possible
  n_atoms_ = (n + atom_ - 1) / atom_;
  sums_.assign(At(n_atoms_ + 1, 0), 0);
  fixed_cpu_.assign(n_atoms_, 0);
  const CpuTimes& cpu = coster.cpu();
  for (size_t i = 0; i < n; ++i) {
    const size_t atom = i / atom_;
    if (i % atom_ == 0) std::copy_n(sums_.begin() + At(atom, 0), At(1, 0), sums_.begin() + At(atom + 1, 0));
    fixed_cpu_[atom] += coster.CpuSeconds(order[i]);
    for (uint32_t s = 0; s < kScenarios; ++s) {
      const uint32_t load = coster.scenarios().At(s)[order[i]];
      if (load == 0) continue;
      for (size_t c = 0; c < n_capacities_ && load > ladder[c]; ++c) {
        sums_[At(atom + 1, c) + s] += cpu.Of(load - ladder[c]);
      }
      sums_[At(atom + 1, n_capacities_) + s] += cpu.Of(load);
    }
  }
  for (size_t atoms = 0; atoms * atom_ <= max_group_; ++atoms) {
    load_.push_back(coster.Load(atoms * atom_));
    for (const uint32_t capacity : ladder) dispatch_.push_back(coster.Dispatch(atoms * atom_, capacity));
  }
}

// Of the run of units [begin, end) as a group; `npu`: [capacities] priced dispatches.
double LayerCuts::RunPrice(size_t begin, size_t end, const SidePrices& prices, std::span<const size_t> capacities,
                           std::span<const double> npu) const {
  const auto row = [&](size_t c) { return std::pair(sums_.data() + At(begin, c), sums_.data() + At(end, c)); };
  std::array<double, kScenarios> all;
  const auto [all_begin, all_end] = row(n_capacities_);
  for (uint32_t s = 0; s < kScenarios; ++s) all[s] = prices.cpu_second * (all_end[s] - all_begin[s]);
  if (coster_.per_run_capacity()) {
    // Nobody came: all[s] is 0 and stays the least.
    std::array<double, kScenarios> least = all;
    for (size_t i = 0; i < capacities.size(); ++i) {
      const auto [from, to] = row(capacities[i]);
      for (uint32_t s = 0; s < kScenarios; ++s) {
        least[s] = std::min(least[s], npu[i] + prices.cpu_second * (to[s] - from[s]));
      }
    }
    double sum = 0;
    for (const double price : least) sum += price;
    return sum / kScenarios;
  }
  double best = kInfinity;
  for (size_t i = 0; i < capacities.size(); ++i) {
    const auto [from, to] = row(capacities[i]);
    double sum = 0;
    for (uint32_t s = 0; s < kScenarios; ++s) {
      sum += all[s] > 0 ? npu[i] + prices.cpu_second * (to[s] - from[s]) : 0;
    }
    best = std::min(best, sum / kScenarios);
  }
  return best;
}

std::vector<std::vector<CutRun>> LayerCuts::Cheapest(const SidePrices& prices, std::span<const size_t> capacities,
                                                     std::span<const double> load_prices) const {
  const size_t n_loads = load_prices.size();
  // [n_atoms + 1, load prices] price of the first units, and how many of them the last group has; 0: one on the CPU.
  std::vector<double> least((n_atoms_ + 1) * n_loads, kInfinity);
  std::vector<size_t> length((n_atoms_ + 1) * n_loads, 0);
  std::fill_n(least.begin(), n_loads, 0.0);
  std::vector<double> npu(dispatch_.size() / n_capacities_ * capacities.size());
  for (size_t i = 0; i < npu.size(); ++i) {
    npu[i] = prices.Npu(dispatch_[i / capacities.size() * n_capacities_ + capacities[i % capacities.size()]]);
  }
  for (size_t begin = 0; begin < n_atoms_; ++begin) {
    if (allow_cpu_) {
      for (size_t l = 0; l < n_loads; ++l) {
        const double price = least[begin * n_loads + l] + prices.cpu_second * fixed_cpu_[begin];
        double& best = least[(begin + 1) * n_loads + l];
        if (price < best) best = price, length[(begin + 1) * n_loads + l] = 0;
      }
    }
    for (size_t end = begin + 1; end <= n_atoms_ && (end - begin) * atom_ <= max_group_; ++end) {
      const size_t atoms = end - begin;
      // The last unit may be short; its group is priced as if it were full but for the rows that come.
      const double run = RunPrice(begin, end, prices, capacities,
                                  std::span<const double>(npu).subspan(atoms * capacities.size(), capacities.size()));
      const double load = prices.Load(load_[atoms]);
      for (size_t l = 0; l < n_loads; ++l) {
        const double price = least[begin * n_loads + l] + run + load_prices[l] * load;
        double& best = least[end * n_loads + l];
        if (price < best) best = price, length[end * n_loads + l] = atoms;
      }
    }
  }
  std::vector<std::vector<CutRun>> cuts(n_loads);
  for (size_t l = 0; l < n_loads; ++l) {
    for (size_t end = n_atoms_; end > 0;) {
      const size_t atoms = length[end * n_loads + l], begin = end - std::max<size_t>(atoms, 1);
      cuts[l].push_back({begin * atom_, std::min(end * atom_, order_.size()), atoms == 0});
      end = begin;
    }
    std::reverse(cuts[l].begin(), cuts[l].end());
  }
  return cuts;
}

}  // namespace npumoe
