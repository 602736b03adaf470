// SPDX-License-Identifier: Apache-2.0
#include "moe/run_choice.h"

#include <algorithm>

#include "base/check.h"

namespace npumoe {
namespace {

// Twenty halvings of the price leave a millionth of its range.
constexpr int kPriceSteps = 20;

struct Option {
  uint32_t index = kSkipGroup;
  double npu = 0, cpu = 0;
};

class Chooser {
 public:
  Chooser(const LayerPlan& layer, std::span<const uint32_t> loads, std::span<const GroupTimes> groups,
          const CpuTimes& cpu, bool spill)
      : layer_(layer), loads_(loads), groups_(groups), cpu_(cpu), spill_(spill) {}

  bool HasLoad(size_t group) const {
    const auto& experts = layer_.groups[group].experts;
    return std::any_of(experts.begin(), experts.end(), [&](uint32_t expert) { return loads_[expert] > 0; });
  }

  Option AtCapacity(size_t group, uint32_t index) const {
    const uint32_t capacity = layer_.groups[group].capacities[index];
    Option option{index, groups_[group].npu_seconds[index], 0};
    if (!spill_) return option;
    for (const uint32_t expert : layer_.groups[group].experts) {
      option.cpu += cpu_.Of(loads_[expert] - std::min(loads_[expert], capacity));
    }
    return option;
  }

  Option OnCpu(size_t group) const {
    Option option{kGroupOnCpu, 0, 0};
    for (const uint32_t expert : layer_.groups[group].experts) option.cpu += cpu_.Of(loads_[expert]);
    return option;
  }

  // The option with the least price * npu + (1 - price) * cpu; the first of equals.
  Option Best(size_t group, double price) const {
    Option best = OnCpu(group);
    double best_cost = (1 - price) * best.cpu;
    for (uint32_t i = 0; i < layer_.groups[group].capacities.size(); ++i) {
      const Option option = AtCapacity(group, i);
      const double cost = price * option.npu + (1 - price) * option.cpu;
      if (cost < best_cost) best = option, best_cost = cost;
    }
    return best;
  }

  // Fills `choice` with everyone's best at `price`; returns the longer side's seconds.
  double Fill(double price, double fixed_cpu, RunChoice& choice) const {
    choice.npu_seconds = 0;
    choice.cpu_seconds = fixed_cpu;
    for (size_t group = 0; group < groups_.size(); ++group) {
      const Option option = HasLoad(group) ? Best(group, price) : Option{};
      choice.capacity_index[group] = option.index;
      choice.npu_seconds += option.npu;
      choice.cpu_seconds += option.cpu;
    }
    return std::max(choice.npu_seconds, choice.cpu_seconds);
  }

  // Moves one group at a time to whatever shortens the longer side, until nothing does.
  void Flip(RunChoice& choice) const {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t group = 0; group < groups_.size(); ++group) {
        const uint32_t now = choice.capacity_index[group];
        if (now == kSkipGroup) continue;
        const Option old = now == kGroupOnCpu ? OnCpu(group) : AtCapacity(group, now);
        const auto try_option = [&](const Option& option) {
          const double npu = choice.npu_seconds - old.npu + option.npu;
          const double cpu = choice.cpu_seconds - old.cpu + option.cpu;
          const double before = std::max(choice.npu_seconds, choice.cpu_seconds);
          // A hair's breadth of gain is asked for, so that rounding cannot make this loop for ever.
          if (std::max(npu, cpu) >= before * (1 - 1e-9)) return false;
          choice.capacity_index[group] = option.index;
          choice.npu_seconds = npu;
          choice.cpu_seconds = cpu;
          return true;
        };
        bool taken = now != kGroupOnCpu && try_option(OnCpu(group));
        for (uint32_t i = 0; i < layer_.groups[group].capacities.size() && !taken; ++i) {
          if (i != now) taken = try_option(AtCapacity(group, i));
        }
        moved = moved || taken;
      }
    }
  }

 private:
  const LayerPlan& layer_;
  std::span<const uint32_t> loads_;
  std::span<const GroupTimes> groups_;
  const CpuTimes& cpu_;
  bool spill_;
};

}  // namespace

void ChooseRun(const LayerPlan& layer, std::span<const uint32_t> loads, std::span<const GroupTimes> groups,
               const CpuTimes& cpu, bool dynamic, bool spill, RunChoice& choice) {
  NM_DCHECK(groups.size() == layer.groups.size());
  const Chooser chooser(layer, loads, groups, cpu, spill);
  choice.capacity_index.assign(groups.size(), kSkipGroup);
  double fixed_cpu = 0;  // experts that the plan gave to the CPU
  for (const uint32_t expert : layer.cpu_experts) fixed_cpu += cpu.Of(loads[expert]);
  if (!dynamic) {
    choice.npu_seconds = 0;
    choice.cpu_seconds = fixed_cpu;
    for (size_t group = 0; group < groups.size(); ++group) {
      if (!chooser.HasLoad(group)) continue;
      const auto last = static_cast<uint32_t>(layer.groups[group].capacities.size() - 1);
      const Option option = chooser.AtCapacity(group, last);
      choice.capacity_index[group] = last;
      choice.npu_seconds += option.npu;
      choice.cpu_seconds += option.cpu;
    }
    return;
  }
  double low = 0, high = 1, best_price = 0.5, best = -1;
  for (int step = 0; step < kPriceSteps; ++step) {
    const double price = (low + high) / 2;
    const double span = chooser.Fill(price, fixed_cpu, choice);
    if (best < 0 || span < best) best = span, best_price = price;
    // A longer NPU side means NPU time was too cheap.
    (choice.npu_seconds > choice.cpu_seconds ? low : high) = price;
  }
  chooser.Fill(best_price, fixed_cpu, choice);
  chooser.Flip(choice);
}

}  // namespace npumoe
