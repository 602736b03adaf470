// SPDX-License-Identifier: Apache-2.0
// Expected cost of a layer's experts: load scenarios drawn from calibration, priced by npu/cost and the runtime's
// choice.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"
#include "moe/plan.h"
#include "moe/planner.h"
#include "moe/routing_stats.h"
#include "moe/run_choice.h"
#include "npu/cost.h"
#include "npu/spec.h"

namespace npumoe {

// Joint loads of a layer's experts, as many scenarios as kCount. Scenario s gives every expert one quantile of its own
// histogram; over all scenarios an expert takes each of the kCount quantiles once (a Latin hypercube with a seed per
// expert), so that marginals are kept and experts vary independently.
struct LoadScenarios {
  static constexpr uint32_t kCount = 16;

  explicit LoadScenarios(std::span<const LoadHistogram> histograms);  // [n_experts]

  size_t n_experts() const { return mean.size(); }
  std::span<const uint32_t> At(uint32_t scenario) const {
    return std::span<const uint32_t>(loads).subspan(scenario * n_experts(), n_experts());
  }

  std::vector<double> mean;     // [n_experts] rows; an expert never seen has half a row over all of calibration
  std::vector<uint32_t> loads;  // [kCount, n_experts]
};

// Loads of a chunk `ratio` times as long. A longer chunk keeps the relative spread (as if its parts routed alike, the
// cautious case); a shorter one has the spread of independent tokens, sqrt(ratio). No load exceeds `max_load`.
LoadHistogram ScaleLoads(const LoadHistogram& histogram, double ratio, uint32_t max_load);

// The format in which weights reach the engine: a chip that cannot stream int8 unfolds it to fp16.
WeightFormat StreamedFormat(WeightFormat format, const NpuSpec& spec);

// What one dispatch of `n_experts` experts at `capacity` rows does; what CountWork says of the graph itself.
Work ExpertGroupWork(const ModelConfig& config, size_t n_experts, uint32_t capacity, const NpuSpec& spec,
                     WeightFormat format);

// Bytes of one expert's three projections in `format`.
size_t ExpertWeightBytes(const ModelConfig& config, WeightFormat format);

// What rows of an expert take on the CPU, with weights of kAssumedFileBytesPerWeight.
CpuTimes ExpertCpuTimes(const ModelConfig& config, const NpuSpec& spec);

// How often a batch runs a layer's experts, and what the two sides have to do meanwhile. A batch in two halves runs them
// twice, each time beside the other half's attention.
struct ExpertRuns {
  std::vector<RunOption> beside{RunOption{}};  // [runs]
  RunOption Sum() const;
};

// Seconds of the CPU for the FFN of a dense layer or a shared expert, `width` wide; 0 for models without.
double CpuFfnSeconds(const ModelConfig& config, const NpuSpec& spec, uint32_t width, double n_tokens);

// The same for adding the weighted outputs of a layer's experts to its tokens.
double ExpertScatterSeconds(const ModelConfig& config, const NpuSpec& spec, double n_tokens);

// Prices plans of one layer. Immutable after construction; borrows config and spec.
class LayerCoster {
 public:
  // histograms: [n_experts] loads of one run.
  LayerCoster(const ModelConfig& config, std::span<const LoadHistogram> histograms, const NpuSpec& spec,
              WeightFormat format, bool per_run_capacity, double joule_price = 0, ExpertRuns runs = {});

  LayerCost Of(const LayerPlan& layer) const;  // of all runs, what is beside them included

  Cost Dispatch(size_t n_experts, uint32_t capacity) const;
  Cost Load(size_t n_experts) const;  // of loading a group's program
  // Expected CPU seconds of one run when the expert is planned there: exact over its histogram.
  double CpuSeconds(uint32_t expert) const { return cpu_seconds_[expert]; }

  const LoadScenarios& scenarios() const { return scenarios_; }
  const CpuTimes& cpu() const { return cpu_; }
  const NpuSpec& spec() const { return spec_; }
  bool per_run_capacity() const { return per_run_capacity_; }

 private:
  void AddScenario(const LayerPlan& layer, std::span<const uint32_t> loads, const RunChoice& choice,
                   const std::vector<std::vector<Cost>>& costs, LayerCost& total) const;

  const ModelConfig& config_;
  const NpuSpec& spec_;
  WeightFormat format_;
  bool per_run_capacity_;
  double joule_price_;
  ExpertRuns runs_;
  LoadScenarios scenarios_;
  CpuTimes cpu_;
  std::vector<double> cpu_seconds_;  // [n_experts]
};

// Of loading one program of so many bytes.
Cost ProgramLoadCost(double bytes, const NpuSpec& spec);

// What one layer's cost is added to, as a product of time and energy is the whole plan's; and what a joule is worth when
// the objective is time.
struct RestOfPlan {
  double seconds = 0, joules = 0;
  double joule_price = 0;  // seconds
};

// What the objective minimises, when a second of loading costs `load_price` seconds. A trace of both sides' sum breaks
// the ties of a maximum.
double Score(const LayerCost& cost, Objective objective, double load_price = 0, const RestOfPlan& rest = {});

}  // namespace npumoe
