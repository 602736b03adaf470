// SPDX-License-Identifier: Apache-2.0
#include "moe/planner.h"

#include "base/check.h"
#include "graph/hash.h"
#include "moe/batch_cost.h"
#include "moe/order_planner.h"

namespace npumoe {
namespace {

constexpr int kPriceAttempts = 4;

Status CheckRequest(const ModelConfig& config, const NpuSpec& spec, const PlanRequest& request) {
  if (request.chunk_tokens == 0 || request.moe_batch_tokens == 0 || request.prompt_tokens == 0) {
    return MakeError(Code::kInvalidArgument, "planner: chunk {}, moe batch {} and prompt {} tokens, wanted above 0",
                     request.chunk_tokens, request.moe_batch_tokens, request.prompt_tokens);
  }
  if (request.n_tiers == 0) return MakeError(Code::kInvalidArgument, "planner: 0 tiers, wanted at least 1");
  for (const uint32_t tokens : {request.chunk_tokens, request.moe_batch_tokens, request.prompt_tokens}) {
    if (tokens > kMaxContext) {
      return MakeError(Code::kUnsupported, "planner: {} tokens, limit {}", tokens, kMaxContext);
    }
  }
  if (spec.last_axis_multiple == 0 || spec.max_axis < spec.last_axis_multiple) {
    return MakeError(Code::kInvalidArgument, "npu {}: last_axis_multiple {}, wanted 1 to max_axis {}", spec.name,
                     spec.last_axis_multiple, spec.max_axis);
  }
  if (config.dense_layer.size() != config.n_layers && config.n_experts > 0) {
    return MakeError(Code::kInvalidArgument, "planner: dense_layer names {} layers, the model has {}",
                     config.dense_layer.size(), config.n_layers);
  }
  return Ok{};
}

Status CheckStats(const ModelConfig& config, const RoutingStats& stats) {
  if (stats.top_k != config.top_k) {
    return MakeError(Code::kInvalidArgument, "routing statistics: {} experts a token, the model has {}", stats.top_k,
                     config.top_k);
  }
  if (stats.n_experts != config.n_experts || stats.n_layers != config.n_layers ||
      stats.layers.size() != config.n_layers) {
    return MakeError(Code::kInvalidArgument, "routing statistics: {} layers of {} experts, the model has {} of {}",
                     stats.layers.size(), stats.n_experts, config.n_layers, config.n_experts);
  }
  if (stats.n_tokens == 0 || stats.chunk_tokens.empty()) {
    return MakeError(Code::kInvalidArgument, "routing statistics: no tokens: the calibration text was empty");
  }
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    if (!config.IsMoeLayer(layer)) continue;
    const auto& loads = stats.layers[layer].loads;
    if (loads.size() != stats.chunk_tokens.size()) {
      return MakeError(Code::kInvalidArgument, "routing statistics: layer {}: loads of {} chunk lengths, wanted {}",
                       layer, loads.size(), stats.chunk_tokens.size());
    }
    for (const auto& experts : loads) {
      if (experts.size() == config.n_experts) continue;
      return MakeError(Code::kInvalidArgument, "routing statistics: layer {}: loads of {} experts, wanted {}", layer,
                       experts.size(), config.n_experts);
    }
  }
  return Ok{};
}

std::string Figures(const PlanCost& cost) { return fmt::format("{:.4f} s and {:.4f} J", cost.seconds, cost.joules); }

// The frugal wavefront that the objective likes better than `whole`, or that. What a joule costs in seconds for one to
// be so is bisected.
Result<PlanWithReasons> FasterInHalves(const ModelConfig& config, const RoutingStats& stats, const NpuSpec& spec,
                                       const PlanRequest& request, const GoOnFn& go_on, PlanOfOrder whole) {
  const PlanCost cost = whole.cost;
  PlanOfOrder best = std::move(whole);
  std::vector<std::string> reasons;
  double price = 0, cheap = 0, dear = 0;  // prices at which a wavefront spends too much, and is no faster
  for (int attempt = 0; attempt < kPriceAttempts; ++attempt) {
    auto halves = PlanInOrder(config, stats, spec, request, PrefillOrder::kWavefront, price, go_on);
    if (!halves.ok() && halves.error().code == Code::kCancelled) return halves.error();
    if (!halves.ok() || !halves->fits) {
      reasons.push_back("order wavefront: the programs of two layers in a row do not fit: not taken");
      break;
    }
    const PlanCost in_halves = halves->cost;
    const bool is_better = Worth(in_halves, request.objective) < Worth(best.cost, request.objective);
    const bool is_frugal = IsFrugal(request.objective, in_halves, cost);
    reasons.push_back(fmt::format("order wavefront{}: expected {} a batch, layer-major {}: {}",
                                  price > 0 ? fmt::format(", a joule at {:.4g} s", price) : std::string(),
                                  Figures(in_halves), Figures(cost),
                                  !is_better  ? "no better"
                                  : is_frugal ? "better"
                                              : fmt::format("above {} times the energy", kMostWavefrontEnergy)));
    if (is_better && is_frugal) best = std::move(halves).value();
    // A second that costs this many joules is worth no more than that: twice the price flips everything back.
    if (attempt == 0) {
      if (is_frugal || !is_better) break;
      dear = 2 * (cost.seconds - in_halves.seconds) / (in_halves.joules - cost.joules);
    } else {
      (is_frugal ? dear : cheap) = price;
    }
    price = (cheap + dear) / 2;
  }
  Plan& plan = best.made.plan;
  reasons.push_back(fmt::format("order {}: taken (simulated, {})", ToString(plan.order), spec.name));
  if (plan.order == PrefillOrder::kWavefront) {
    NM_TRY_VAR(plan.whole_tokens, WholeTokens(config, stats, spec, plan, go_on));
    if (plan.whole_tokens > 0) {
      reasons.push_back(fmt::format("batches of up to {} tokens go through as one: in halves they would be no better",
                                    plan.whole_tokens));
    }
  }
  best.made.reasons.insert(best.made.reasons.end(), reasons.begin(), reasons.end());
  return std::move(best.made);
}

}  // namespace

std::string StatsHash(const RoutingStats& stats) {
  ContentHash hash;
  hash.Add(ToJson(stats));
  return hash.Hex();
}

Result<PlanWithReasons> MakePlan(const ModelConfig& config, const RoutingStats& stats, const NpuSpec& spec,
                                 const PlanRequest& request, const GoOnFn& go_on) {
  NM_TRY(CheckRequest(config, spec, request));
  if (config.n_experts > 0) NM_TRY(CheckStats(config, stats));
  PrefillOrder order = request.order.value_or(PrefillOrder::kLayerMajor);
  if (request.placement != Placement::kOurs) order = PrefillOrder::kChunkMajor;
  NM_TRY_VAR(PlanOfOrder plan, PlanInOrder(config, stats, spec, request, order, /*joule_price=*/0, go_on));
  const Plan& made = plan.made.plan;
  const bool has_halves =
      FirstHalf(PrefillOrder::kWavefront, made.chunk_tokens, made.moe_batch_tokens) < made.moe_batch_tokens;
  if (order == PrefillOrder::kWavefront && !has_halves) {
    NM_TRY_VAR(plan, PlanInOrder(config, stats, spec, request, PrefillOrder::kLayerMajor, 0, go_on));
    plan.made.reasons.push_back("order layer-major instead of wavefront: a batch of one chunk has no halves");
    return std::move(plan.made);
  }
  if (!plan.fits) {
    return MakeError(Code::kUnsupported,
                     "order wavefront: the programs of two layers in a row do not fit npu {}: limits max_programs {}, "
                     "max_resident_bytes {}",
                     spec.name, spec.max_programs, spec.max_resident_bytes);
  }
  if (order == PrefillOrder::kChunkMajor || request.order || !has_halves) return std::move(plan.made);
  return FasterInHalves(config, stats, spec, request, go_on, std::move(plan));
}

}  // namespace npumoe
