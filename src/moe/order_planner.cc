// SPDX-License-Identifier: Apache-2.0
#include "moe/order_planner.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "moe/attention_plan.h"
#include "moe/batch_cost.h"
#include "moe/batch_loads.h"
#include "moe/half_range.h"
#include "moe/layer_cost.h"
#include "moe/layer_search.h"
#include "moe/plan_cost.h"
#include "moe/spare_capacities.h"

namespace npumoe {
namespace {

// Prices of a second of loading, in seconds of running, that are tried when not all programs can stay loaded: the first
// ignore loads that may hide behind other work, the last give up groups until the rest stays.
constexpr std::array kLoadPrices{0.0, 0.1, 0.25, 0.5, 1.0, 4.0, 16.0, 64.0};
// Programs looked at while layers are switched between the plans of these prices: well below a second.
constexpr size_t kSwitchWork = 2'000'000;
// Experts times load prices up to which every price's plan is polished before layers switch, and not only the chosen.
constexpr size_t kPolishAllWork = 1024;
constexpr int kPriceRounds = 3;

uint32_t RoundUpTo(uint32_t n, uint64_t multiple) {
  return static_cast<uint32_t>(std::min<uint64_t>((n + multiple - 1) / multiple * multiple, UINT32_MAX));
}

bool IsStatic(Placement placement) { return placement != Placement::kOurs; }
bool AttentionOnCpu(Placement placement) { return placement == Placement::kCpu || placement == Placement::kNaive; }
bool ExpertsOnCpu(Placement placement) { return placement == Placement::kCpu || placement == Placement::kAnemll; }
bool WholeChunkGraphs(Placement placement) { return placement == Placement::kNaive || placement == Placement::kBase; }

// One layer's attention on either side; `free` when nothing but the objective decides.
struct AttentionSides {
  AttentionCost npu, cpu;
  double npu_first_half = 0;  // seconds of the first half's chunks, of npu.npu_seconds
  bool free = false, on_cpu = false;  // on_cpu: it has to be
};

class Planner {
 public:
  Planner(const ModelConfig& config, const RoutingStats& stats, const NpuSpec& spec, const PlanRequest& request,
          PrefillOrder order, double joule_price, const GoOnFn& go_on)
      : config_(config), stats_(stats), spec_(spec), request_(request), order_(order), go_on_(go_on), objective_(request.objective) {
    plan().joule_price = joule_price;
  }

  Result<PlanOfOrder> Run() {
    FillHead();
    PlanAttention();
    if (config_.n_experts > 0) {
      NM_TRY(ReadLoads());
      if (!ExpertsOnCpu(request_.placement)) NM_TRY(FindRules());
    }
    PlanExperts();
    if (stopped_) return MakeError(Code::kCancelled, "planner: stopped by the caller");
    const bool fits = FitsItsOrder();
    return PlanOfOrder{std::move(out_), total_, fits};
  }

 private:
  Plan& plan() { return out_.plan; }
  const Plan& plan() const { return out_.plan; }
  template <typename... Args>
  void Say(fmt::format_string<Args...> format, Args&&... args) {
    out_.reasons.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void FillHead();
  void PlanAttention();
  void BeginAttention();
  void SwitchAttention();
  Status ReadLoads();
  Status FindRules();
  // A plan on its way, without what never changes.
  struct Draft {
    std::vector<LayerPlan> layers;
    double joule_price = 0;
    std::vector<AttentionCost> attention;
    std::vector<LayerCost> costs;
    std::vector<double> load_price;
    PlanCost total;
  };
  Draft Now() const { return {plan().layers, plan().joule_price, attention_, costs_, load_price_, total_}; }
  void GoBackTo(const Draft& draft);
  void PlanExperts();
  void SearchLayers();
  void SearchProduct();
  void ScaleExperts();
  void ServeOtherBatches();
  void PriceJoules();
  void RepriceJoules();
  bool FitsItsOrder() const;
  LayerCoster CosterOf(uint32_t layer) const;
  std::vector<LayerOption> PlaceLayer(uint32_t layer, std::span<const double> load_prices, bool polish) const;
  bool IsSearched(uint32_t layer) const;
  void AllOnCpu(LayerOption& option) const;
  void OneGraphEach(LayerOption& option) const;
  void Use(uint32_t layer, const LayerOption& option);
  bool UseIfBetter(std::span<const std::pair<uint32_t, const LayerOption*>> changes);
  bool SwitchLayers(const std::vector<std::vector<LayerOption>>& options, size_t& budget);
  bool SwitchPairs(const std::vector<std::vector<LayerOption>>& options, size_t& budget);
  void SpreadLoads();
  bool PolishLayers();
  // Once told to stop, nothing is searched and nothing looks better any more: every loop soon ends.
  bool Stopped() const { return stopped_ = stopped_ || (go_on_ && !go_on_()); }
  PlanCost Sum() const {
    return Stopped() ? total_ : ExpectedPlanCost(config_, plan(), plan().layers, attention_, costs_, spec_);
  }
  double ScoreOf(const PlanCost& cost) const;
  RestOfPlan Rest(uint32_t layer) const;
  void Explain();
  void ExplainHalves();
  void ExplainLayer(uint32_t layer, const LayerCost& cost);

  const ModelConfig& config_;
  const RoutingStats& stats_;
  const NpuSpec& spec_;
  const PlanRequest& request_;
  const PrefillOrder order_;
  const GoOnFn& go_on_;
  Objective objective_;  // at work: on the way to a product's plan those of its ends
  mutable bool stopped_ = false;
  PlanWithReasons out_;
  GroupRules rules_;
  uint32_t batch_tokens_ = 0;                                // of one MoE batch
  uint32_t run_tokens_ = 0;                                  // of them, those whose experts run at once
  std::vector<std::vector<LoadHistogram>> plan_histograms_;  // [n_layers][n_experts] loads of one run; dense: empty
  mutable std::vector<KnownCuts> known_cuts_;                // [n_layers]
  std::vector<AttentionCost> attention_;                     // [n_layers] of one batch
  std::vector<AttentionSides> attention_sides_;              // [n_layers]
  std::vector<bool> experts_in_danger_;                      // [n_layers] fp16 cannot hold the experts' inputs
  std::vector<LayerCost> costs_;                             // [n_layers] of plan().layers
  std::vector<double> load_price_;                           // [n_layers] at which the layer was planned
  PlanCost total_;                                           // of plan().layers
};

void Planner::FillHead() {
  Plan& p = plan();
  const bool ours = request_.placement == Placement::kOurs;
  p.model_hash = stats_.model_hash;
  p.spec_hash = SpecHash(spec_);
  if (request_.names_stats) p.stats_hash = StatsHash(stats_);
  p.npu = spec_.name;
  p.placement = request_.placement;
  p.expert_weights = request_.expert_weights;
  p.attention_weights = request_.attention_weights;
  // Rows beyond the context would always be padding. A config that does not say (0) sets no bound.
  const uint32_t context = config_.context_length == 0 ? kMaxContext : config_.context_length;
  p.chunk_tokens = RoundUpTo(std::min(request_.chunk_tokens, context), spec_.last_axis_multiple);
  p.order = order_;
  const uint32_t prompt = std::min(request_.prompt_tokens, context);
  const uint32_t longest = std::max(RoundUpTo(prompt, spec_.last_axis_multiple), p.chunk_tokens);
  const uint32_t batch = std::max(request_.moe_batch_tokens, p.chunk_tokens);
  batch_tokens_ = p.moe_batch_tokens = ours ? std::min(batch, longest) : p.chunk_tokens;
  run_tokens_ = FirstHalf(order_, p.chunk_tokens, batch_tokens_);
  p.kv_buckets = KvBuckets(spec_, p.chunk_tokens, prompt, /*fine=*/ours);
  p.mode = request_.mode;
  p.objective = request_.objective;
  p.per_run_capacity = ours;
  p.layers.resize(config_.n_layers);
  Say("all times are simulated for {} ({}); objective {}, {}, MoE batches of {} tokens", spec_.title, spec_.name,
      ToString(p.objective), ToString(p.order), p.moe_batch_tokens);
  if (p.chunk_tokens != request_.chunk_tokens) {
    Say("chunk of {} tokens instead of {}: {}", p.chunk_tokens, request_.chunk_tokens,
        request_.chunk_tokens > context ? fmt::format("the model's context is {} tokens", context)
                                        : fmt::format("rows are padded to multiples of {}", spec_.last_axis_multiple));
  }
  if (ours && batch_tokens_ < batch) {
    Say("MoE batches of {} tokens instead of {}: no prompt of up to {} tokens has more", batch_tokens_, batch, prompt);
  }
  if (config_.n_experts > 0 && !stats_.complete) {
    Say("warning: the routing statistics are incomplete: calibration was interrupted after {} tokens", stats_.n_tokens);
  }
  if (p.expert_weights == WeightFormat::kFp16 && p.attention_weights == WeightFormat::kFp16) {
    Say("weights stay fp16: other formats change the model's numbers and are taken only when asked for");
  } else {
    Say("weights of experts {}, of attention {}: what is not fp16 changes the model's numbers",
        ToString(p.expert_weights), ToString(p.attention_weights));
    const bool any_int8 = p.expert_weights == WeightFormat::kInt8 || p.attention_weights == WeightFormat::kInt8;
    if (any_int8 && !spec_.streams_int8) Say("{} unfolds int8 to fp16, so that it saves no time", spec_.name);
  }
  Say("attention is compiled for caches of up to {} tokens ({} lengths)", p.kv_buckets.back(), p.kv_buckets.size());
}

// The baselines say where attention runs.
void Planner::PlanAttention() {
  const std::string misfit = AttentionMisfit(config_, spec_, plan().chunk_tokens, plan().attention_weights);
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    AttentionSides& sides = attention_sides_.emplace_back();
    const auto cost_on = [&](AttentionPlace place, uint32_t n_tokens) {
      return ExpectedAttentionCost(config_, spec_, place, config_.IsMoeLayer(layer), plan().chunk_tokens, 0, n_tokens,
                                   plan().kv_buckets, plan().attention_weights);
    };
    sides.npu = cost_on(AttentionPlace::kNpu, batch_tokens_);
    sides.npu_first_half = cost_on(AttentionPlace::kNpu, run_tokens_).npu_seconds;
    sides.cpu = cost_on(AttentionPlace::kCpu, batch_tokens_);
    std::string reason = AttentionOnCpu(request_.placement) ? "the placement asks for it" : misfit;
    if (reason.empty() && layer < stats_.layers.size()) reason = AttentionDanger(stats_.layers[layer].range);
    if (!reason.empty()) Say("layer {}: attention on the CPU: {}", layer, reason);
    sides.free = reason.empty() && !IsStatic(request_.placement);
    sides.on_cpu = !reason.empty();
  }
}

// Ours begins with the side that the objective prefers for the layer alone.
void Planner::BeginAttention() {
  const auto score = [&](const AttentionCost& cost) {
    return ScoreOf({.seconds = cost.npu_seconds + cost.cpu_seconds, .joules = cost.joules, .loads = {}});
  };
  attention_.clear();
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    const AttentionSides& sides = attention_sides_[layer];
    const bool on_cpu = sides.on_cpu || (sides.free && score(sides.cpu) < score(sides.npu));
    plan().layers[layer].attention = on_cpu ? AttentionPlace::kCpu : AttentionPlace::kNpu;
    attention_.push_back(on_cpu ? sides.cpu : sides.npu);
  }
}

// Where the objective would rather have attention, now that the rest is planned: all layers at once on either side (a
// product of time and energy is best at its ends), then one by one.
void Planner::SwitchAttention() {
  const auto put = [&](uint32_t layer, AttentionPlace place) {
    if (!attention_sides_[layer].free) return;
    plan().layers[layer].attention = place;
    attention_[layer] = place == AttentionPlace::kCpu ? attention_sides_[layer].cpu : attention_sides_[layer].npu;
    // Only attention on the NPU has experts beside it.
    if (order_ == PrefillOrder::kWavefront && config_.IsMoeLayer(layer)) {
      costs_[layer] = CosterOf(layer).Of(plan().layers[layer]);
    }
  };
  // Changes layers [first, last) and keeps that if it is better.
  const auto try_change = [&](uint32_t first, uint32_t last, const auto& place_of) {
    std::vector<AttentionPlace> old;
    for (uint32_t layer = first; layer < last; ++layer) {
      old.push_back(plan().layers[layer].attention);
      put(layer, place_of(old.back()));
    }
    const PlanCost cost = Sum();
    if (ScoreOf(cost) < ScoreOf(total_) * kLeastGain) {
      total_ = cost;
      return true;
    }
    for (uint32_t layer = first; layer < last; ++layer) put(layer, old[layer - first]);
    return false;
  };
  for (const AttentionPlace place : {AttentionPlace::kCpu, AttentionPlace::kNpu}) {
    try_change(0, config_.n_layers, [&](AttentionPlace) { return place; });
  }
  const auto other = [](AttentionPlace place) {
    return place == AttentionPlace::kCpu ? AttentionPlace::kNpu : AttentionPlace::kCpu;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
      if (attention_sides_[layer].free) moved = try_change(layer, layer + 1, other) || moved;
    }
  }
}

Status Planner::ReadLoads() {
  NM_TRY_VAR(BatchLoads loads, LoadsOf(config_, stats_, run_tokens_));
  plan_histograms_ = std::move(loads.histograms);
  if (loads.calibrated_tokens != run_tokens_) {
    Say("loads of {} tokens are scaled from the nearest calibrated length of {}, {}", run_tokens_,
        loads.calibrated_tokens,
        run_tokens_ > loads.calibrated_tokens ? "with the same relative spread"
                                              : "with the spread of independent tokens");
  }
  return Ok{};
}

Status Planner::FindRules() {
  const size_t weight_limit = std::min(spec_.max_program_weight_bytes, spec_.max_resident_bytes);
  const size_t expert_bytes = ExpertWeightBytes(config_, plan().expert_weights);
  const size_t by_dim = spec_.max_channels / config_.dim, by_hidden = spec_.max_channels / config_.expert_dim;
  const size_t by_bytes = weight_limit < kGraphConstantBytes ? 0 : (weight_limit - kGraphConstantBytes) / expert_bytes;
  if (by_dim == 0 || by_hidden == 0) {
    return MakeError(Code::kUnsupported, "npu {}: limit max_channels is {}, one expert has {}", spec_.name,
                     spec_.max_channels, std::max(config_.dim, config_.expert_dim));
  }
  if (by_bytes == 0) {
    return MakeError(Code::kUnsupported, "npu {}: limit {} is {}, one expert has {}", spec_.name,
                     weight_limit == spec_.max_program_weight_bytes ? "max_program_weight_bytes" : "max_resident_bytes",
                     weight_limit, expert_bytes + kGraphConstantBytes);
  }
  rules_.max_group = std::min({by_dim, by_hidden, by_bytes, size_t{config_.n_experts}});
  rules_.capacity_step = static_cast<uint32_t>(spec_.last_axis_multiple);
  const uint64_t axis = spec_.max_axis / spec_.last_axis_multiple * spec_.last_axis_multiple;
  rules_.max_capacity =
      static_cast<uint32_t>(std::min<uint64_t>(axis, RoundUpTo(run_tokens_, spec_.last_axis_multiple)));
  Say("a program holds up to {} experts: {} by max_channels over dim {}, {} over expert_dim {}, {} by weight bytes",
      rules_.max_group, by_dim, config_.dim, by_hidden, config_.expert_dim, by_bytes);
  if (WholeChunkGraphs(request_.placement) && rules_.max_capacity < batch_tokens_) {
    return MakeError(Code::kUnsupported, "npu {}: limit max_axis is {}, a chunk has {} rows", spec_.name,
                     spec_.max_axis, batch_tokens_);
  }
  rules_.allow_cpu = request_.placement == Placement::kOurs || request_.placement == Placement::kAll;
  rules_.n_tiers = IsStatic(request_.placement) ? request_.n_tiers : 0;
  if (request_.placement == Placement::kTiers) rules_.max_group = 1;
  return Ok{};
}

void Planner::AllOnCpu(LayerOption& option) const {
  option.plan.cpu_experts.resize(config_.n_experts);
  std::iota(option.plan.cpu_experts.begin(), option.plan.cpu_experts.end(), 0u);
}

void Planner::OneGraphEach(LayerOption& option) const {
  for (uint32_t expert = 0; expert < config_.n_experts; ++expert) {
    option.plan.groups.push_back({{expert}, {RoundUpTo(batch_tokens_, spec_.last_axis_multiple)}});
  }
}

// Whether the layer's plan is searched for and not given by the placement.
bool Planner::IsSearched(uint32_t layer) const {
  return config_.IsMoeLayer(layer) && !ExpertsOnCpu(request_.placement) && !experts_in_danger_[layer] &&
         !WholeChunkGraphs(request_.placement);
}

bool Planner::FitsItsOrder() const {
  if (order_ != PrefillOrder::kWavefront) return true;
  std::vector<LayerPrograms> programs;
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    programs.push_back(ProgramsOf(config_, plan(), layer, plan().layers[layer]));
  }
  return NeighboursFit(programs, spec_);
}

// What a joule is worth when capacities are chosen per run: the objective's own exchange rate at the plan as it stands.
void Planner::PriceJoules() {
  if (objective_ == Objective::kTime || total_.joules <= 0) return;
  plan().joule_price = objective_ == Objective::kEnergy
                           ? kMaxJoulePrice
                           : std::min(total_.seconds / total_.joules, kMaxJoulePrice);
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    if (config_.IsMoeLayer(layer)) costs_[layer] = CosterOf(layer).Of(plan().layers[layer]);
  }
  total_ = Sum();
}

// The rate was that of the plan before: again with that of the plan it led to, as long as that is better.
void Planner::RepriceJoules() {
  for (int round = 0; round < kPriceRounds && !Stopped(); ++round) {
    const Draft old = Now();
    PriceJoules();
    PolishLayers();
    SwitchAttention();
    if (ScoreOf(total_) < ScoreOf(old.total) * kLeastGain) continue;
    GoBackTo(old);
    return;
  }
}

void Planner::GoBackTo(const Draft& draft) {
  plan().layers = draft.layers;
  plan().joule_price = draft.joule_price;
  attention_ = draft.attention;
  costs_ = draft.costs;
  load_price_ = draft.load_price;
  total_ = draft.total;
}

// With its attention where it is now.
LayerCoster Planner::CosterOf(uint32_t layer) const {
  const uint32_t other_tokens = batch_tokens_ - run_tokens_;
  const bool beside = other_tokens > 0 && plan().layers[layer].attention == AttentionPlace::kNpu;
  // The first half's experts run beside the second half's attention, and the other way round.
  const AttentionSides& sides = attention_sides_[layer];
  ExpertRuns runs{{BesideExperts(config_, spec_, run_tokens_,
                                 beside ? sides.npu.npu_seconds - sides.npu_first_half : 0, beside ? other_tokens : 0)}};
  if (other_tokens > 0) {
    runs.beside.push_back(BesideExperts(config_, spec_, other_tokens, beside ? sides.npu_first_half : 0,
                                        beside ? run_tokens_ : 0));
  }
  return LayerCoster(config_, plan_histograms_[layer], spec_, plan().expert_weights, plan().per_run_capacity,
                     plan().joule_price, std::move(runs));
}

// The plans worth having; a single one when nothing is searched.
std::vector<LayerOption> Planner::PlaceLayer(uint32_t layer, std::span<const double> load_prices, bool polish) const {
  if (Stopped()) return {LayerOption{}};
  if (!config_.IsMoeLayer(layer)) {
    LayerOption dense;
    dense.cost.cpu_seconds = CpuFfnSeconds(config_, spec_, config_.ffn_dim, batch_tokens_);
    dense.cost.joules = dense.cost.cpu_seconds * spec_.cpu_watts.value;
    return {dense};
  }
  const LayerCoster coster = CosterOf(layer);
  if (IsSearched(layer)) {
    return SearchLayer(coster, rules_, objective_, Rest(layer), load_prices, polish, known_cuts_[layer]);
  }
  LayerOption option;
  if (WholeChunkGraphs(request_.placement) && !experts_in_danger_[layer]) {
    OneGraphEach(option);
  } else {
    AllOnCpu(option);
  }
  option.cost = coster.Of(option.plan);
  return {option};
}

void Planner::Use(uint32_t layer, const LayerOption& option) {
  plan().layers[layer].groups = option.plan.groups;
  plan().layers[layer].cpu_experts = option.plan.cpu_experts;
  costs_[layer] = option.cost;
  load_price_[layer] = option.load_price;
}

bool Planner::UseIfBetter(std::span<const std::pair<uint32_t, const LayerOption*>> changes) {
  std::vector<LayerOption> old;
  for (const auto& [layer, option] : changes) {
    old.push_back({plan().layers[layer], costs_[layer], load_price_[layer]});
    Use(layer, *option);
  }
  const PlanCost cost = Sum();
  if (ScoreOf(cost) < ScoreOf(total_) * kLeastGain) {
    total_ = cost;
    return true;
  }
  for (size_t i = 0; i < changes.size(); ++i) Use(changes[i].first, old[i]);
  return false;
}

double Planner::ScoreOf(const PlanCost& cost) const {
  LayerCost all;
  all.npu_seconds = all.cpu_seconds = cost.seconds;
  all.joules = cost.joules;
  return Score(all, objective_, 0, {0, 0, plan().joule_price});
}

// The plan without the layer's experts, as far as it is planned: at first that is attention alone.
RestOfPlan Planner::Rest(uint32_t layer) const {
  return {std::max(0.0, total_.seconds - costs_[layer].Seconds()), std::max(0.0, total_.joules - costs_[layer].joules),
          plan().joule_price};
}

// Not all programs fit at once: first one load price for all layers, then layers change on their own, then in pairs.
void Planner::SpreadLoads() {
  const bool polish = size_t{config_.n_layers} * config_.n_experts * kLoadPrices.size() <= kPolishAllWork;
  std::vector<std::vector<LayerOption>> options;
  std::vector<LayerOption> best;
  std::vector<RestOfPlan> rests;
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    options.push_back(PlaceLayer(layer, kLoadPrices, polish));
    best.push_back({plan().layers[layer], costs_[layer], load_price_[layer]});
    rests.push_back(Rest(layer));
  }
  for (const double price : kLoadPrices) {
    std::vector<LayerOption> chosen;
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
      chosen.push_back(options[layer][BestOption(options[layer], objective_, rests[layer], price)]);
      Use(layer, chosen.back());
    }
    if (const PlanCost cost = Sum(); ScoreOf(cost) < ScoreOf(total_)) total_ = cost, best = std::move(chosen);
  }
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) Use(layer, best[layer]);
  size_t budget = kSwitchWork / std::max<size_t>(total_.n_programs, 1);
  while (SwitchLayers(options, budget) || SwitchPairs(options, budget)) {
  }
}

// Layers that are searched are improved one by one. False when what they would like together does not stay loaded.
bool Planner::PolishLayers() {
  std::vector<LayerOption> wanted;
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    wanted.push_back({plan().layers[layer], costs_[layer], load_price_[layer]});
    if (!IsSearched(layer)) continue;
    const std::vector<LayerOption> options = PlaceLayer(layer, {&load_price_[layer], 1}, /*polish=*/true);
    wanted.back() = options[BestOption(options, objective_, Rest(layer), load_price_[layer])];
    for (const LayerOption& option : options) {
      const std::pair<uint32_t, const LayerOption*> change[] = {{layer, &option}};
      UseIfBetter(change);
    }
  }
  std::vector<LayerPlan> layers;
  std::vector<LayerCost> costs;
  for (const LayerOption& option : wanted) layers.push_back(option.plan), costs.push_back(option.cost);
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) layers[layer].attention = plan().layers[layer].attention;
  return ExpectedPlanCost(config_, plan(), layers, attention_, costs, spec_).loads.resident;
}

bool Planner::SwitchLayers(const std::vector<std::vector<LayerOption>>& options, size_t& budget) {
  bool moved = false;
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    for (const LayerOption& option : options[layer]) {
      if (budget == 0) return moved;
      --budget;
      const std::pair<uint32_t, const LayerOption*> change[] = {{layer, &option}};
      moved = UseIfBetter(change) || moved;
    }
  }
  return moved;
}

bool Planner::SwitchPairs(const std::vector<std::vector<LayerOption>>& options, size_t& budget) {
  for (uint32_t a = 0; a < config_.n_layers; ++a) {
    for (uint32_t b = a + 1; b < config_.n_layers; ++b) {
      for (const LayerOption& of_a : options[a]) {
        for (const LayerOption& of_b : options[b]) {
          if (budget == 0) return false;
          --budget;
          const std::pair<uint32_t, const LayerOption*> changes[] = {{a, &of_a}, {b, &of_b}};
          if (UseIfBetter(changes)) return true;
        }
      }
    }
  }
  return false;
}

void Planner::ScaleExperts() {
  experts_in_danger_.assign(config_.n_layers, false);
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    if (!config_.IsMoeLayer(layer)) continue;
    const std::string danger = ScaleOrDanger(stats_.layers[layer].range, plan().layers[layer].expert_scale);
    experts_in_danger_[layer] = !danger.empty();
    if (!danger.empty()) Say("layer {}: experts on the CPU: {}, fp16 is safe below {}", layer, danger, kSafeF16);
    if (const float scale = plan().layers[layer].expert_scale; scale > 1) {
      Say("layer {}: experts are scaled by 1/{}: their values would pass {}", layer, scale, kSafeF16);
    }
  }
}

void Planner::ServeOtherBatches() {
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    if (!IsSearched(layer)) continue;
    LayerPlan& p = plan().layers[layer];
    for (ExpertGroup& group : p.groups) {
      AddSpareCapacities(static_cast<uint32_t>(spec_.last_axis_multiple), rules_.max_capacity, group.capacities);
    }
    costs_[layer] = CosterOf(layer).Of(p);
  }
  total_ = Sum();
}

// From nothing to a plan for the objective, but for capacities of other batches.
void Planner::SearchLayers() {
  for (LayerPlan& layer : plan().layers) {
    layer.groups.clear();
    layer.cpu_experts.clear();
  }
  BeginAttention();
  costs_.assign(config_.n_layers, {});
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    if (order_ == PrefillOrder::kWavefront && config_.IsMoeLayer(layer)) costs_[layer] = CosterOf(layer).Of({});
  }
  load_price_.assign(config_.n_layers, 0);
  total_ = Sum();
  constexpr std::array kFree{0.0};
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    const std::vector<LayerOption> options = PlaceLayer(layer, kFree, /*polish=*/false);
    Use(layer, options[BestOption(options, objective_, Rest(layer), 0)]);
  }
  total_ = Sum();
  if (plan().per_run_capacity) PriceJoules();
  // Only plans that may move experts can pay less for loading.
  const bool may_spread = rules_.allow_cpu && !ExpertsOnCpu(request_.placement);
  if (!total_.loads.resident && may_spread) {
    SpreadLoads();
    PolishLayers();
  } else if (!PolishLayers() && may_spread) {
    SpreadLoads();
  }
  SwitchAttention();
}

// A product of time and energy has its own search, and the plans for either alone, from which it is improved where one
// of them is better. Whichever is best in the end stays.
void Planner::SearchProduct() {
  std::vector<Draft> drafts;
  for (const Objective objective : {Objective::kEnergy, Objective::kTime, request_.objective}) {
    objective_ = objective;
    plan().joule_price = 0;
    SearchLayers();
    drafts.push_back(Now());
  }
  const auto product = [&](const Draft& draft) { return ScoreOf(draft.total); };
  RepriceJoules();
  drafts.back() = Now();
  if (const auto best = std::ranges::min_element(drafts, {}, product); best + 1 != drafts.end()) {
    GoBackTo(*best);
    RepriceJoules();
    drafts.push_back(Now());
  }
  for (Draft& draft : drafts) {
    GoBackTo(draft);
    ServeOtherBatches();
    draft = Now();
  }
  GoBackTo(*std::ranges::min_element(drafts, {}, product));
}

void Planner::PlanExperts() {
  ScaleExperts();
  known_cuts_.resize(config_.n_layers);
  if (objective_ == Objective::kEnergyDelay && plan().per_run_capacity) {
    SearchProduct();
  } else {
    SearchLayers();
    if (plan().per_run_capacity) ServeOtherBatches();
  }
  plan().expected_seconds = total_.seconds;
  plan().expected_joules = total_.joules;
  out_.n_programs = total_.n_programs;
  out_.program_bytes = total_.program_bytes;
  out_.load_seconds = total_.loads.load_seconds;
  Explain();
}

void Planner::ExplainLayer(uint32_t layer, const LayerCost& cost) {
  const LayerPlan& p = plan().layers[layer];
  std::string groups;
  for (const ExpertGroup& group : p.groups) {
    if (groups.size() > 200) {
      groups += ", ...";
      break;
    }
    groups +=
        fmt::format("{}{} at {}", groups.empty() ? "" : ", ", group.experts.size(), fmt::join(group.capacities, "/"));
  }
  size_t unseen = 0;
  for (const uint64_t tokens : stats_.layers[layer].tokens) unseen += tokens == 0;
  Say("layer {}: {} groups on the NPU (experts at rows: {}), {} experts on the CPU; expected {:.3f} ms NPU, {:.3f} ms "
      "CPU, {:.3g} mJ, {:.1f} rows overflow, {:.0f} padded (simulated, {}){}",
      layer, p.groups.size(), groups.empty() ? "none" : groups, p.cpu_experts.size(), cost.npu_seconds * 1e3,
      cost.cpu_seconds * 1e3, cost.joules * 1e3, cost.expected_overflow_rows, cost.padded_rows, spec_.name,
      unseen > 0 ? fmt::format("; {} experts never seen keep a place", unseen) : std::string());
}

void Planner::ExplainHalves() {
  if (run_tokens_ == batch_tokens_) return;
  const auto n_beside =
      std::ranges::count_if(costs_, [](const LayerCost& cost) { return cost.attention_seconds > 0; });
  if (n_beside == 0) {
    Say("two halves of a batch are in flight, and nothing runs beside experts: no MoE layer has attention on the NPU");
    return;
  }
  Say("two halves of a batch are in flight: in {} layers the experts of {} tokens run beside the other half's attention",
      n_beside, run_tokens_);
}

void Planner::Explain() {
  ExplainHalves();
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    const AttentionSides& sides = attention_sides_[layer];
    if (sides.free) {
      Say("layer {}: attention on the {}: expected {:.3f} ms and {:.3g} mJ on the NPU, {:.3f} ms and {:.3g} mJ on the "
          "CPU (simulated, {})",
          layer, plan().layers[layer].attention == AttentionPlace::kNpu ? "NPU" : "CPU",
          (sides.npu.npu_seconds + sides.npu.cpu_seconds) * 1e3, sides.npu.joules * 1e3, sides.cpu.cpu_seconds * 1e3,
          sides.cpu.joules * 1e3, spec_.name);
    }
    if (config_.IsMoeLayer(layer)) ExplainLayer(layer, costs_[layer]);
  }
  const std::string limits = fmt::format("limits max_programs {}, max_resident_bytes {:.0f} MB", spec_.max_programs,
                                         static_cast<double>(spec_.max_resident_bytes) * 1e-6);
  const std::string programs = fmt::format("{} programs of {:.1f} MB in all", total_.n_programs,
                                           static_cast<double>(total_.program_bytes) * 1e-6);
  if (total_.loads.resident) {
    Say("{} stay loaded ({})", programs, limits);
  } else {
    Say("{} cannot all stay loaded ({}): a batch loads programs for {:.4f} s, of which {:.4f} s do not hide behind the "
        "layer before (loading is assumed not to slow down what runs beside it)",
        programs, limits, total_.loads.load_seconds, total_.loads.wait_seconds);
  }
  Say("attention and routed experts of a batch of {} tokens: expected {:.4f} s, {:.4f} J (simulated, {})",
      batch_tokens_, total_.seconds, total_.joules, spec_.name);
}

}  // namespace

Result<PlanOfOrder> PlanInOrder(const ModelConfig& config, const RoutingStats& stats, const NpuSpec& spec,
                                const PlanRequest& request, PrefillOrder order, double joule_price,
                                const GoOnFn& go_on) {
  return Planner(config, stats, spec, request, order, joule_price, go_on).Run();
}

}  // namespace npumoe
