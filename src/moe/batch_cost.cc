// SPDX-License-Identifier: Apache-2.0
#include "moe/batch_cost.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "moe/attention_plan.h"
#include "moe/batch_loads.h"
#include "moe/layer_cost.h"

namespace npumoe {
namespace {

constexpr uint32_t kMaxPricedLengths = 16;  // of a batch: pricing them all takes a fraction of planning

// Tokens [first, last) of a batch whose experts run at once.
struct Run {
  uint32_t first = 0, last = 0;
  BatchLoads loads;
  uint32_t size() const { return last - first; }
};

// One run after the other; sides wait for each other at the end of each.
void Add(const LayerCost& run, LayerCost& total) {
  total.npu_seconds += run.npu_seconds;
  total.cpu_seconds += run.cpu_seconds;
  total.longer_seconds += run.Seconds();
  total.joules += run.joules;
  total.attention_seconds += run.attention_seconds;
}

}  // namespace

RunOption BesideExperts(const ModelConfig& config, const NpuSpec& spec, uint32_t n_tokens, double attention_seconds,
                        uint32_t other_tokens) {
  RunOption beside{attention_seconds, CpuFfnSeconds(config, spec, config.shared_expert_dim, n_tokens)};
  if (other_tokens > 0) {
    beside.cpu += ExpertScatterSeconds(config, spec, n_tokens) + AttentionCopySeconds(config, spec, other_tokens);
  }
  return beside;
}

Result<PlanCost> ExpectedBatchCost(const ModelConfig& config, const RoutingStats& stats, const NpuSpec& spec,
                                   const Plan& plan, uint32_t n_tokens) {
  const uint32_t half = FirstHalf(plan, n_tokens);
  std::vector<Run> runs{{0, half, {}}};
  if (half < n_tokens) runs.push_back({half, n_tokens, {}});
  for (Run& run : runs) {
    NM_TRY_VAR(run.loads, LoadsOf(config, stats, run.size()));
  }

  Plan batch = plan;
  batch.moe_batch_tokens = n_tokens;
  if (runs.size() == 1 && plan.order == PrefillOrder::kWavefront) batch.order = PrefillOrder::kLayerMajor;
  std::vector<AttentionCost> attention;
  std::vector<LayerCost> experts(config.n_layers);
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    const LayerPlan& layer_plan = plan.layers[layer];
    const auto attention_of = [&](uint32_t first, uint32_t last) {
      return ExpectedAttentionCost(config, spec, layer_plan.attention, config.IsMoeLayer(layer), plan.chunk_tokens,
                                   first, last, plan.kv_buckets, plan.attention_weights);
    };
    attention.push_back(attention_of(0, n_tokens));
    if (!config.IsMoeLayer(layer)) {
      experts[layer].cpu_seconds = CpuFfnSeconds(config, spec, config.ffn_dim, n_tokens);
      experts[layer].joules = experts[layer].cpu_seconds * spec.cpu_watts.value;
      continue;
    }
    for (size_t i = 0; i < runs.size(); ++i) {
      const bool beside = runs.size() > 1 && layer_plan.attention == AttentionPlace::kNpu;
      const Run other = beside ? Run{runs[1 - i].first, runs[1 - i].last, {}} : Run{};
      const double other_attention = beside ? attention_of(other.first, other.last).npu_seconds : 0;
      const LayerCoster coster(config, runs[i].loads.histograms[layer], spec, plan.expert_weights,
                               plan.per_run_capacity, plan.joule_price,
                               {{BesideExperts(config, spec, runs[i].size(), other_attention, other.size())}});
      Add(coster.Of(layer_plan), experts[layer]);
    }
  }
  return ExpectedPlanCost(config, batch, plan.layers, attention, experts, spec);
}

double Worth(const PlanCost& cost, Objective objective) {
  switch (objective) {
    case Objective::kTime:
      return cost.seconds;
    case Objective::kEnergy:
      return cost.joules;
    case Objective::kEnergyDelay:
      return cost.seconds * cost.joules;
  }
  return cost.seconds;
}

bool IsFrugal(Objective objective, const PlanCost& halves, const PlanCost& whole) {
  return objective != Objective::kTime || halves.joules <= kMostWavefrontEnergy * whole.joules;
}

bool BetterInHalves(Objective objective, const PlanCost& halves, const PlanCost& whole) {
  return Worth(halves, objective) < Worth(whole, objective) && IsFrugal(objective, halves, whole);
}

Result<uint32_t> WholeTokens(const ModelConfig& config, const RoutingStats& stats, const NpuSpec& spec,
                             const Plan& plan, const GoOnFn& go_on) {
  Plan halves = plan, whole = plan;
  halves.whole_tokens = 0;
  whole.order = PrefillOrder::kLayerMajor;
  const uint32_t n_chunks = (plan.moe_batch_tokens + plan.chunk_tokens - 1) / plan.chunk_tokens;
  const uint32_t step = (n_chunks + kMaxPricedLengths - 1) / kMaxPricedLengths;
  uint32_t in_halves = n_chunks;  // chunks from which on halves are better; a full batch was chosen to have them
  while (in_halves > step + 1) {
    const uint32_t n_tokens = (in_halves - step) * plan.chunk_tokens;
    if (go_on && !go_on()) return MakeError(Code::kCancelled, "planner: stopped by the caller");
    NM_TRY_VAR(const PlanCost of_halves, ExpectedBatchCost(config, stats, spec, halves, n_tokens));
    NM_TRY_VAR(const PlanCost as_one, ExpectedBatchCost(config, stats, spec, whole, n_tokens));
    if (!BetterInHalves(plan.objective, of_halves, as_one)) return (in_halves - 1) * plan.chunk_tokens;
    in_halves -= step;
  }
  return in_halves > 2 ? (in_halves - 1) * plan.chunk_tokens : 0;
}

}  // namespace npumoe
