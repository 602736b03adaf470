// SPDX-License-Identifier: Apache-2.0
#include "moe/run_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace npumoe {
namespace {

struct Case {
  LayerPlan layer;
  std::vector<uint32_t> loads;
  std::vector<std::vector<double>> times;  // [groups][capacities]
  CpuTimes cpu;

  std::vector<GroupTimes> Groups() const {
    std::vector<GroupTimes> groups;
    for (const auto& t : times) groups.push_back({t, {}});
    return groups;
  }
};

// Two groups of two experts; one capacity of 10 rows at 1 s, CPU rows at 0.1 s, weights at 0.05 s.
Case Small(std::vector<uint32_t> loads) {
  Case c;
  c.layer.groups = {{{0, 1}, {10}}, {{2, 3}, {10}}};
  c.layer.cpu_experts = {4};
  c.loads = std::move(loads);
  c.times = {{1.0}, {1.0}};
  c.cpu = {0.1, 0.05};
  return c;
}

RunChoice Choose(const Case& c, bool dynamic = true, bool spill = true, const RunOption& beside = {}) {
  RunChoice choice;
  const auto groups = c.Groups();
  ChooseRun(c.layer, c.loads, groups, c.cpu, dynamic, spill, beside, 0, choice);
  return choice;
}

TEST(ChooseRun, SkipsAGroupNobodyWasRoutedTo) {
  const RunChoice choice = Choose(Small({0, 0, 10, 10, 0}));
  EXPECT_EQ(choice.capacity_index, (std::vector<uint32_t>{kSkipGroup, 0}));
  EXPECT_DOUBLE_EQ(choice.npu_seconds, 1.0);
  EXPECT_DOUBLE_EQ(choice.cpu_seconds, 0.0);
}

TEST(ChooseRun, GivesAnAlmostEmptyGroupToTheCpu) {
  // Group 0 full (CPU would need 2.1 s), group 1 holds one row: 0.15 s on the CPU beside 1 s on the NPU.
  const RunChoice choice = Choose(Small({10, 10, 1, 0, 0}));
  EXPECT_EQ(choice.capacity_index, (std::vector<uint32_t>{0, kGroupOnCpu}));
  EXPECT_DOUBLE_EQ(choice.npu_seconds, 1.0);
  EXPECT_DOUBLE_EQ(choice.cpu_seconds, 0.1 + 0.05);
}

TEST(ChooseRun, CountsOverflowAsCpuTimeOnlyWhenItIsSpilled) {
  const Case c = Small({13, 10, 10, 10, 2});
  const RunChoice exact = Choose(c, false, true);
  EXPECT_DOUBLE_EQ(exact.cpu_seconds, 0.35 + 0.25);  // 3 spilled rows and the planned CPU expert
  const RunChoice prune = Choose(c, false, false);
  EXPECT_DOUBLE_EQ(prune.cpu_seconds, 0.25);
  EXPECT_EQ(prune.capacity_index, (std::vector<uint32_t>{0, 0}));
}

TEST(ChooseRun, GroupWithoutAProgramGoesToTheCpu) {
  for (const bool dynamic : {false, true}) {
    Case c = Small({10, 10, 4, 0, 0});
    c.times[0].clear();
    const RunChoice choice = Choose(c, dynamic);
    EXPECT_EQ(choice.capacity_index[0], kGroupOnCpu);
    EXPECT_DOUBLE_EQ(choice.cpu_seconds, choice.capacity_index[1] == kGroupOnCpu ? 2.55 : 2.1);
  }
}

TEST(ChooseRun, CountsWhatTheSidesDoBesides) {
  const Case c = Small({10, 10, 10, 10, 0});  // a group takes 1 s on the NPU, 2.1 s on the CPU
  const auto with = [&](double npu, double cpu) {
    RunChoice choice;
    ChooseRun(c.layer, c.loads, c.Groups(), c.cpu, true, true, {npu, cpu, 0}, 0, choice);
    return choice;
  };
  EXPECT_EQ(with(0, 0).capacity_index, (std::vector<uint32_t>{0, 0}));
  const RunChoice busy_npu = with(3, 0);  // 3 + 1 beside 2.1
  EXPECT_EQ(std::ranges::count(busy_npu.capacity_index, kGroupOnCpu), 1);
  EXPECT_DOUBLE_EQ(busy_npu.npu_seconds, 4);
  EXPECT_DOUBLE_EQ(busy_npu.cpu_seconds, 2.1);
  const RunChoice busy_cpu = with(3, 5);
  EXPECT_EQ(busy_cpu.capacity_index, (std::vector<uint32_t>{0, 0}));
  EXPECT_DOUBLE_EQ(busy_cpu.cpu_seconds, 5);
}

TEST(ChooseRun, PaysForJoules) {
  Case c = Small({10, 10, 1, 0, 0});  // the second group: 1 s on the NPU, 0.15 s on the CPU beside the first
  c.cpu.watts = 20;
  const std::vector<double> joules{2.0};
  const auto at = [&](double price) {
    RunChoice choice;
    const std::vector<GroupTimes> groups{{c.times[0], joules}, {c.times[1], joules}};
    ChooseRun(c.layer, c.loads, groups, c.cpu, true, true, {}, price, choice);
    return choice;
  };
  EXPECT_EQ(at(0).capacity_index, (std::vector<uint32_t>{0, kGroupOnCpu}));
  EXPECT_DOUBLE_EQ(at(0).joules, 2 + 0.15 * 20);
  EXPECT_EQ(at(0.5).capacity_index[1], kGroupOnCpu);  // a joule saved, a second lost
  EXPECT_EQ(at(2).capacity_index, (std::vector<uint32_t>{0, 0}));
  EXPECT_DOUBLE_EQ(at(2).joules, 4);
}

TEST(ChooseRun, LeavesNothingBehindForTheNextCall) {
  RunChoice choice;
  const Case large = Small({10, 10, 1, 0, 3}), empty = Small({0, 0, 0, 0, 0});
  ChooseRun(large.layer, large.loads, large.Groups(), large.cpu, true, true, {}, 0, choice);
  ChooseRun(empty.layer, empty.loads, empty.Groups(), empty.cpu, true, true, {}, 0, choice);
  EXPECT_EQ(choice.capacity_index, (std::vector<uint32_t>{kSkipGroup, kSkipGroup}));
  EXPECT_EQ(choice.npu_seconds, 0);
  EXPECT_EQ(choice.cpu_seconds, 0);
  ChooseRun(large.layer, large.loads, large.Groups(), large.cpu, true, true, {}, 0, choice);
  EXPECT_EQ(choice.capacity_index, Choose(large).capacity_index);
}

// Every combination of options, for the best longer side.
double Enumerate(const Case& c, const RunOption& beside) {
  const size_t n = c.layer.groups.size();
  std::vector<size_t> pick(n, 0);
  double best = 1e300;
  while (true) {
    double npu = beside.npu, cpu = beside.cpu;
    for (const uint32_t expert : c.layer.cpu_experts) cpu += c.cpu.Of(c.loads[expert]);
    for (size_t g = 0; g < n; ++g) {
      const ExpertGroup& group = c.layer.groups[g];
      uint32_t total = 0;
      for (const uint32_t e : group.experts) total += c.loads[e];
      if (total == 0) continue;
      const bool on_cpu = pick[g] == group.capacities.size();
      if (!on_cpu) npu += c.times[g][pick[g]];
      for (const uint32_t e : group.experts) {
        const uint32_t kept = on_cpu ? 0 : std::min(c.loads[e], group.capacities[pick[g]]);
        cpu += c.cpu.Of(c.loads[e] - kept);
      }
    }
    best = std::min(best, std::max(npu, cpu));
    size_t g = 0;
    while (g < n && ++pick[g] > c.layer.groups[g].capacities.size()) pick[g++] = 0;
    if (g == n) return best;
  }
}

TEST(ChooseRun, IsCloseToTheBestOfAllCombinations) {
  Random random(5);
  double worst = 1, sum = 0;
  constexpr int kCases = 300;
  for (int i = 0; i < kCases; ++i) {
    Case c;
    c.cpu = {0.01 + 0.03 * random.Uniform(), 0.02 + 0.3 * random.Uniform()};
    const size_t n_groups = 2 + random.Below(5);
    for (size_t g = 0; g < n_groups; ++g) {
      ExpertGroup group;
      std::vector<double> times;
      for (uint32_t e = 0; e < 3; ++e) {
        group.experts.push_back(static_cast<uint32_t>(c.loads.size()));
        c.loads.push_back(static_cast<uint32_t>(random.Below(4) == 0 ? 0 : random.Below(120)));
      }
      for (const uint32_t capacity : {16u, 32u, 64u, 128u}) {
        group.capacities.push_back(capacity);
        times.push_back(0.15 + 0.004 * capacity);
      }
      c.layer.groups.push_back(group);
      c.times.push_back(times);
    }
    RunOption beside;
    if (i % 2 == 1) beside = {random.Uniform(), random.Uniform() / 2, 0};
    const RunChoice choice = Choose(c, true, true, beside);
    const double best = Enumerate(c, beside);
    if (best == 0) continue;
    const double ratio = std::max(choice.npu_seconds, choice.cpu_seconds) / best;
    worst = std::max(worst, ratio);
    sum += ratio / kCases;
  }
  EXPECT_LE(sum, 1.02);
  EXPECT_LE(worst, 1.35);
}

}  // namespace
}  // namespace npumoe
