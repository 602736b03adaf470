// SPDX-License-Identifier: Apache-2.0
#include "moe/layer_cost.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "base/random.h"
#include "moe/weight_format.h"

namespace npumoe {
namespace {

// Rows that an expert without any token is expected to see over a text as long as the calibration's: half a row, the
// usual prior of a rare event (Krichevsky and Trofimov).
constexpr double kUnseenRows = 0.5;
constexpr double kTieBreak = 1e-4;

double Chunks(const LoadHistogram& histogram) {
  double n = 0;
  for (const auto& [load, count] : histogram) n += static_cast<double>(count);
  return n;
}

double Mean(const LoadHistogram& histogram) {
  double rows = 0;
  for (const auto& [load, count] : histogram) rows += static_cast<double>(load) * static_cast<double>(count);
  const double chunks = Chunks(histogram);
  return rows > 0 ? rows / chunks : kUnseenRows / (chunks + 1);
}

// Load at the middle of each of kCount equal shares of the chunks, ascending.
std::array<uint32_t, LoadScenarios::kCount> Quantiles(const LoadHistogram& histogram) {
  std::array<uint32_t, LoadScenarios::kCount> quantiles{};
  const double chunks = Chunks(histogram);
  double below = 0;
  size_t next = 0;
  for (const auto& [load, count] : histogram) {
    below += static_cast<double>(count);
    while (next < quantiles.size() && (static_cast<double>(next) + 0.5) / LoadScenarios::kCount * chunks < below) {
      quantiles[next++] = load;
    }
  }
  return quantiles;
}

}  // namespace

LoadScenarios::LoadScenarios(std::span<const LoadHistogram> histograms)
    : mean(histograms.size()), loads(kCount * histograms.size()) {
  for (size_t expert = 0; expert < histograms.size(); ++expert) {
    mean[expert] = Mean(histograms[expert]);
    auto quantiles = Quantiles(histograms[expert]);
    Random random(expert);
    for (uint32_t i = kCount - 1; i > 0; --i) std::swap(quantiles[i], quantiles[random.Below(i + 1)]);
    for (uint32_t scenario = 0; scenario < kCount; ++scenario) {
      loads[scenario * histograms.size() + expert] = quantiles[scenario];
    }
  }
}

LoadHistogram ScaleLoads(const LoadHistogram& histogram, double ratio, uint32_t max_load) {
  double rows = 0;
  for (const auto& [load, count] : histogram) rows += static_cast<double>(load) * static_cast<double>(count);
  const double chunks = Chunks(histogram), mean = chunks > 0 ? rows / chunks : 0;
  const double spread = ratio >= 1 ? ratio : std::sqrt(ratio);
  LoadHistogram scaled;
  for (const auto& [load, count] : histogram) {
    const double rows_now = std::round(mean * ratio + (static_cast<double>(load) - mean) * spread);
    scaled[static_cast<uint32_t>(std::clamp(rows_now, 0.0, static_cast<double>(max_load)))] += count;
  }
  return scaled;
}

WeightFormat StreamedFormat(WeightFormat format, const NpuSpec& spec) {
  return format == WeightFormat::kInt8 && !spec.streams_int8 ? WeightFormat::kFp16 : format;
}

size_t ExpertWeightBytes(const ModelConfig& config, WeightFormat format) {
  return 2 * WeightBytes(format, config.expert_dim, config.dim) + WeightBytes(format, config.dim, config.expert_dim);
}

Work ExpertGroupWork(const ModelConfig& config, size_t n_experts, uint32_t capacity, const NpuSpec& spec,
                     WeightFormat format) {
  constexpr double kHalf = 2;  // bytes of fp16
  const double n = static_cast<double>(n_experts), rows = capacity, dim = config.dim, expert_dim = config.expert_dim;
  Work work;
  const WeightFormat streamed = StreamedFormat(format, spec);
  work.flops = work.paced_flops = n * rows * 2 * expert_dim;  // silu and product
  AddProduct({rows, dim, expert_dim, 2 * n, static_cast<double>(WeightBytes(streamed, config.expert_dim, config.dim))},
             spec, work);
  AddProduct({rows, expert_dim, dim, n, static_cast<double>(WeightBytes(streamed, config.dim, config.expert_dim))},
             spec, work);
  work.weight_bytes = n * static_cast<double>(ExpertWeightBytes(config, streamed));
  if (PaletteBits(streamed) > 0) work.unpacked_bytes = 3 * n * dim * expert_dim * kHalf;
  work.io_bytes = 2 * n * dim * rows * kHalf;
  return work;
}

CpuTimes ExpertCpuTimes(const ModelConfig& config, const NpuSpec& spec) {
  const double weights = 3.0 * config.dim * config.expert_dim;
  return {2 * weights / spec.cpu_flops_per_second.value,
          weights * kAssumedFileBytesPerWeight / spec.cpu_bytes_per_second.value, spec.cpu_watts.value};
}

double ExpertScatterSeconds(const ModelConfig& config, const NpuSpec& spec, double n_tokens) {
  return 2 * n_tokens * config.top_k * config.dim * sizeof(float) / spec.copy_bytes_per_second.value;
}

RunOption ExpertRuns::Sum() const {
  RunOption sum;
  for (const RunOption& run : beside) sum.npu += run.npu, sum.cpu += run.cpu;
  return sum;
}

double CpuFfnSeconds(const ModelConfig& config, const NpuSpec& spec, uint32_t width, double n_tokens) {
  if (width == 0) return 0;
  const double weights = 3.0 * config.dim * width;
  return CpuExpertCost(n_tokens, 2 * weights, weights * kAssumedFileBytesPerWeight, spec).seconds;
}

LayerCoster::LayerCoster(const ModelConfig& config, std::span<const LoadHistogram> histograms, const NpuSpec& spec,
                         WeightFormat format, bool per_run_capacity, double joule_price, ExpertRuns runs)
    : config_(config),
      spec_(spec),
      format_(format),
      per_run_capacity_(per_run_capacity),
      joule_price_(joule_price),
      runs_(std::move(runs)),
      scenarios_(histograms) {
  NM_CHECK(!runs_.beside.empty());
  cpu_ = ExpertCpuTimes(config, spec);
  for (const LoadHistogram& histogram : histograms) {
    double seconds = 0;
    for (const auto& [load, count] : histogram) seconds += cpu_.Of(load) * static_cast<double>(count);
    const double chunks = Chunks(histogram);
    // The expected half row of an unseen expert comes as one row, half as often.
    cpu_seconds_.push_back(seconds > 0 ? seconds / chunks : kUnseenRows / (chunks + 1) * cpu_.Of(1));
  }
}

Cost LayerCoster::Dispatch(size_t n_experts, uint32_t capacity) const {
  return DispatchCost(ExpertGroupWork(config_, n_experts, capacity, spec_, format_), spec_);
}

Cost ProgramLoadCost(double bytes, const NpuSpec& spec) {
  const double seconds = spec.load_seconds.value + bytes / spec.weight_bytes_per_second.value;
  return {seconds, seconds * spec.watts_base.value};
}

Cost LayerCoster::Load(size_t n_experts) const {
  return ProgramLoadCost(static_cast<double>(n_experts * ExpertWeightBytes(config_, format_)), spec_);
}

void LayerCoster::AddScenario(const LayerPlan& layer, std::span<const uint32_t> loads, const RunChoice& choice,
                              const std::vector<std::vector<Cost>>& costs, LayerCost& total) const {
  const double share = static_cast<double>(runs_.beside.size()) / LoadScenarios::kCount;
  for (size_t group = 0; group < layer.groups.size(); ++group) {
    const uint32_t index = choice.capacity_index[group];
    if (index == kSkipGroup) continue;
    const bool on_npu = index != kGroupOnCpu;
    const uint32_t capacity = on_npu ? layer.groups[group].capacities[index] : 0;
    if (on_npu) {
      total.npu_seconds += share * costs[group][index].seconds;
      total.joules += share * costs[group][index].joules;
    }
    for (const uint32_t expert : layer.groups[group].experts) {
      const uint32_t kept = std::min(loads[expert], capacity);
      total.cpu_seconds += share * cpu_.Of(loads[expert] - kept);
      if (!on_npu) continue;
      total.expected_overflow_rows += share * (loads[expert] - kept);
      total.padded_rows += share * (capacity - kept);
    }
  }
}

LayerCost LayerCoster::Of(const LayerPlan& layer) const {
  LayerCost total;
  std::vector<std::vector<Cost>> costs;
  std::vector<std::vector<double>> seconds, joules;
  for (const ExpertGroup& group : layer.groups) {
    auto& group_costs = costs.emplace_back();
    auto& group_seconds = seconds.emplace_back();
    auto& group_joules = joules.emplace_back();
    for (const uint32_t capacity : group.capacities) {
      group_costs.push_back(Dispatch(group.experts.size(), capacity));
      group_seconds.push_back(group_costs.back().seconds);
      group_joules.push_back(group_costs.back().joules);
    }
    const Cost load = Load(group.experts.size());
    total.load_seconds += load.seconds;
    total.load_joules += load.joules;
  }
  const std::vector<GroupTimes> times = [&] {
    std::vector<GroupTimes> views;
    for (size_t group = 0; group < seconds.size(); ++group) views.push_back({seconds[group], joules[group]});
    return views;
  }();
  RunChoice choice;
  // Without groups there is nothing to choose; but each of several runs waits for the longer of its own sides.
  const bool any_sides = !layer.groups.empty() || runs_.beside.size() > 1;
  for (uint32_t scenario = 0; scenario < LoadScenarios::kCount && any_sides; ++scenario) {
    // Overflow is priced as work for the CPU in every mode: a row that pruning drops is not free either.
    ChooseRun(layer, scenarios_.At(scenario), times, cpu_, per_run_capacity_, /*spill=*/true,
              runs_.beside[scenario % runs_.beside.size()], joule_price_, choice);
    AddScenario(layer, scenarios_.At(scenario), choice, costs, total);
    if (runs_.beside.size() > 1) {
      total.longer_seconds += std::max(choice.npu_seconds, choice.cpu_seconds) *
                              static_cast<double>(runs_.beside.size()) / LoadScenarios::kCount;
    }
  }
  const double n_runs = static_cast<double>(runs_.beside.size());
  for (const uint32_t expert : layer.cpu_experts) total.cpu_seconds += n_runs * cpu_seconds_[expert];
  const RunOption beside = runs_.Sum();
  total.npu_seconds += beside.npu;
  total.attention_seconds = beside.npu;
  total.cpu_seconds += beside.cpu;
  total.joules += total.cpu_seconds * spec_.cpu_watts.value;
  return total;
}

LayerCost ExpectedLayerCost(const ModelConfig& config, const LayerRouting& routing, size_t chunk_index,
                            const LayerPlan& layer, const NpuSpec& spec, WeightFormat format, bool per_run_capacity,
                            double joule_price) {
  NM_CHECK(chunk_index < routing.loads.size());
  return LayerCoster(config, routing.loads[chunk_index], spec, format, per_run_capacity, joule_price).Of(layer);
}

double Score(const LayerCost& cost, Objective objective, double load_price, const RestOfPlan& rest) {
  const double seconds =
      cost.Seconds() + kTieBreak * (cost.npu_seconds + cost.cpu_seconds) + load_price * cost.load_seconds;
  const double joules = cost.joules + load_price * cost.load_joules;
  switch (objective) {
    case Objective::kTime:
      return seconds + rest.joule_price * joules;
    case Objective::kEnergy:
      return joules;
    case Objective::kEnergyDelay:
      return (rest.joules + joules) * (rest.seconds + seconds);
  }
  return seconds;
}

}  // namespace npumoe
