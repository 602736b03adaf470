// SPDX-License-Identifier: Apache-2.0
#include "moe/run_choice.h"

#include <algorithm>

#include "base/check.h"

namespace npumoe {
namespace {

// Twenty halvings of the price leave a millionth of its range.
constexpr int kPriceSteps = 20;

// Works on a group's options by their place: 0 is the CPU, i + 1 is capacity i.
class Chooser {
 public:
  Chooser(const RunOption& fixed, double joule_price, RunChoice& choice)
      : fixed_(fixed), joule_price_(joule_price), choice_(choice) {}

  // Costs of all options. A group that nobody was routed to has none.
  void Tabulate(const LayerPlan& layer, std::span<const uint32_t> loads, std::span<const GroupTimes> groups,
                const CpuTimes& cpu, bool spill) {
    choice_.options.clear();
    choice_.option_begin.assign(1, 0);
    for (size_t group = 0; group < groups.size(); ++group) {
      AddOptions(layer.groups[group], loads, groups[group], cpu, spill);
      choice_.option_begin.push_back(static_cast<uint32_t>(choice_.options.size()));
    }
  }

  // The group's last option: its largest capacity, or the CPU if there is none.
  void TakeLargest() {
    Restart();
    for (size_t group = 0; group < choice_.capacity_index.size(); ++group) {
      const auto options = Options(group);
      if (!options.empty()) Take(group, options.size() - 1);
    }
  }

  // Everyone's option with the least price * npu + (1 - price) * cpu and energy, the first of equals. Returns what is
  // minimised.
  double TakeCheapest(double price) {
    Restart();
    for (size_t group = 0; group < choice_.capacity_index.size(); ++group) {
      const auto options = Options(group);
      if (options.empty()) continue;
      size_t best = 0;
      double best_cost = 0;
      for (size_t i = 0; i < options.size(); ++i) {
        const double cost =
            price * options[i].npu + (1 - price) * options[i].cpu + joule_price_ * options[i].joules;
        if (i == 0 || cost < best_cost) best = i, best_cost = cost;
      }
      Take(group, best);
    }
    return Worth(choice_.npu_seconds, choice_.cpu_seconds, choice_.joules);
  }

  // Moves one group at a time to whatever helps, until nothing does.
  void Flip() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t group = 0; group < choice_.capacity_index.size(); ++group) moved = FlipOne(group) || moved;
    }
  }

 private:
  double Worth(double npu, double cpu, double joules) const { return std::max(npu, cpu) + joule_price_ * joules; }

  void AddOptions(const ExpertGroup& group, std::span<const uint32_t> loads, const GroupTimes& times,
                  const CpuTimes& cpu, bool spill) {
    RunOption on_cpu;
    bool has_load = false;
    for (const uint32_t expert : group.experts) {
      on_cpu.cpu += cpu.Of(loads[expert]);
      has_load = has_load || loads[expert] > 0;
    }
    if (!has_load) return;
    on_cpu.joules = on_cpu.cpu * cpu.watts;
    choice_.options.push_back(on_cpu);
    for (size_t i = 0; i < std::min(times.npu_seconds.size(), group.capacities.size()); ++i) {
      RunOption option{times.npu_seconds[i], 0, 0};
      for (const uint32_t expert : group.experts) {
        if (!spill) break;
        option.cpu += cpu.Of(loads[expert] - std::min(loads[expert], group.capacities[i]));
      }
      option.joules = option.cpu * cpu.watts + (i < times.npu_joules.size() ? times.npu_joules[i] : 0);
      choice_.options.push_back(option);
    }
  }

  std::span<const RunOption> Options(size_t group) const {
    return std::span(choice_.options)
        .subspan(choice_.option_begin[group], choice_.option_begin[group + 1] - choice_.option_begin[group]);
  }

  void Restart() {
    std::fill(choice_.capacity_index.begin(), choice_.capacity_index.end(), kSkipGroup);
    choice_.npu_seconds = fixed_.npu;
    choice_.cpu_seconds = fixed_.cpu;
    choice_.joules = fixed_.joules;
  }

  void Take(size_t group, size_t option) {
    choice_.capacity_index[group] = option == 0 ? kGroupOnCpu : static_cast<uint32_t>(option - 1);
    choice_.npu_seconds += Options(group)[option].npu;
    choice_.cpu_seconds += Options(group)[option].cpu;
    choice_.joules += Options(group)[option].joules;
  }

  bool FlipOne(size_t group) {
    const auto options = Options(group);
    if (options.empty()) return false;
    const uint32_t index = choice_.capacity_index[group];
    const size_t now = index == kGroupOnCpu ? 0 : size_t{index} + 1;
    // A hair's breadth of gain is asked for, so that rounding cannot make this loop for ever.
    const double wanted = Worth(choice_.npu_seconds, choice_.cpu_seconds, choice_.joules) * (1 - 1e-9);
    for (size_t i = 0; i < options.size(); ++i) {
      const double npu = choice_.npu_seconds - options[now].npu + options[i].npu;
      const double cpu = choice_.cpu_seconds - options[now].cpu + options[i].cpu;
      const double joules = choice_.joules - options[now].joules + options[i].joules;
      if (i == now || Worth(npu, cpu, joules) >= wanted) continue;
      choice_.capacity_index[group] = i == 0 ? kGroupOnCpu : static_cast<uint32_t>(i - 1);
      choice_.npu_seconds = npu;
      choice_.cpu_seconds = cpu;
      choice_.joules = joules;
      return true;
    }
    return false;
  }

  RunOption fixed_;  // of the experts that the plan gave to the CPU, and what the sides do besides
  const double joule_price_;
  RunChoice& choice_;
};

}  // namespace

void ChooseRun(const LayerPlan& layer, std::span<const uint32_t> loads, std::span<const GroupTimes> groups,
               const CpuTimes& cpu, bool dynamic, bool spill, const RunOption& beside,
               double joule_price, RunChoice& choice) {
  NM_DCHECK(groups.size() == layer.groups.size());
  choice.capacity_index.resize(groups.size());
  RunOption fixed = beside;
  for (const uint32_t expert : layer.cpu_experts) fixed.cpu += cpu.Of(loads[expert]);
  fixed.joules += fixed.cpu * cpu.watts;
  Chooser chooser(fixed, joule_price, choice);
  chooser.Tabulate(layer, loads, groups, cpu, spill);
  if (!dynamic) return chooser.TakeLargest();
  double low = 0, high = 1, best_price = 0.5, best = -1;
  for (int step = 0; step < kPriceSteps; ++step) {
    const double price = (low + high) / 2;
    const double span = chooser.TakeCheapest(price);
    if (best < 0 || span < best) best = span, best_price = price;
    // A longer NPU side means NPU time was too cheap.
    (choice.npu_seconds > choice.cpu_seconds ? low : high) = price;
  }
  chooser.TakeCheapest(best_price);
  chooser.Flip();
}

}  // namespace npumoe
