// SPDX-License-Identifier: Apache-2.0
#include "moe/planner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/test_effort.h"
#include "model/random_model.h"
#include "moe/attention_plan.h"
#include "moe/layer_cost.h"
#include "moe/plan_cost.h"

namespace npumoe {
namespace {

WeightFormat AnyFormat(Random& random) {
  constexpr WeightFormat kFormats[] = {WeightFormat::kFp16, WeightFormat::kInt8, WeightFormat::kLut8,
                                       WeightFormat::kLut6, WeightFormat::kLut4};
  return kFormats[random.Below(std::size(kFormats))];
}

constexpr Placement kPlacements[] = {Placement::kOurs, Placement::kCpu,   Placement::kNaive,       Placement::kAnemll,
                                     Placement::kBase, Placement::kTiers, Placement::kTiersGroups, Placement::kAll};

ModelConfig Model(uint32_t n_layers, uint32_t n_experts, uint32_t dim, uint32_t expert_dim) {
  ModelConfig config;
  config.dim = dim;
  config.n_layers = n_layers;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 32;
  config.rope_dim = 32;
  config.n_experts = n_experts;
  config.top_k = std::min(2u, n_experts);
  config.expert_dim = expert_dim;
  config.dense_layer.assign(n_layers, false);
  return config;
}

// Skewed loads: expert e of a shuffled order gets a share that falls like a power of its rank, with noise per chunk.
RoutingStats Routing(const ModelConfig& config, uint32_t chunk, double skew, uint64_t seed) {
  constexpr uint64_t kChunks = 24;
  Random random(seed);
  RoutingStats stats;
  stats.model_hash = "model";
  stats.n_layers = config.n_layers;
  stats.n_experts = config.n_experts;
  stats.top_k = config.top_k;
  stats.chunk_tokens = {chunk};
  stats.n_tokens = kChunks * chunk;
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    LayerRouting& routing = stats.layers.emplace_back();
    if (!config.IsMoeLayer(layer)) continue;
    const size_t n = config.n_experts;
    std::vector<double> share(n);
    double sum = 0;
    for (size_t e = 0; e < n; ++e) sum += share[e] = std::pow(static_cast<double>(e + 1), -skew);
    for (size_t e = n - 1; e > 0; --e) std::swap(share[e], share[random.Below(e + 1)]);
    routing.loads = {std::vector<LoadHistogram>(n)};
    routing.tokens.assign(n, 0);
    for (size_t e = 0; e < n; ++e) {
      for (uint64_t c = 0; c < kChunks; ++c) {
        const double mean = share[e] / sum * config.top_k * chunk;
        const double rows = std::clamp(mean * std::exp(0.4 * random.Gaussian()), 0.0, static_cast<double>(chunk));
        ++routing.loads[0][e][static_cast<uint32_t>(rows)];
        routing.tokens[e] += static_cast<uint32_t>(rows);
      }
    }
  }
  return stats;
}

const NpuSpec& Spec(std::string_view name) { return **FindSpec(name); }

// A machine whose CPU is so slow that everything that may go to the NPU does.
NpuSpec SlowCpu(std::string_view name) {
  NpuSpec spec = Spec(name);
  spec.cpu_flops_per_second.value = 1e9;
  return spec;
}

// No plan exceeds what a device enforces.
void ExpectWithinLimits(const Plan& plan, const ModelConfig& config, const NpuSpec& spec, const PlanRequest& request) {
  const Status status = CheckPlan(plan, config);
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(plan.chunk_tokens % spec.last_axis_multiple, 0u);
  EXPECT_LE(plan.kv_buckets.back() + (plan.kv_buckets.size() > 1 ? plan.chunk_tokens : 0), spec.max_axis);
  EXPECT_TRUE(std::isfinite(plan.expected_seconds) && plan.expected_seconds > 0);
  for (const LayerPlan& layer : plan.layers) {
    if (layer.attention == AttentionPlace::kNpu) {
      EXPECT_LE(2 * config.dim, spec.max_channels);
      EXPECT_LE(plan.chunk_tokens, spec.max_axis);
    }
    std::vector<uint32_t> tiers;
    for (const ExpertGroup& group : layer.groups) {
      const size_t n = group.experts.size();
      EXPECT_LE(n * config.dim, spec.max_channels);
      EXPECT_LE(n * config.expert_dim, spec.max_channels);
      EXPECT_LE(n * ExpertWeightBytes(config, request.expert_weights), spec.max_program_weight_bytes);
      EXPECT_LE(group.capacities.size(), request.placement == Placement::kOurs ? 9u : 1u);
      EXPECT_LE(group.capacities.back(), spec.max_axis);
      EXPECT_TRUE(std::is_sorted(group.experts.begin(), group.experts.end()));
      for (const uint32_t capacity : group.capacities) EXPECT_EQ(capacity % spec.last_axis_multiple, 0u);
      tiers.push_back(group.capacities[0]);
    }
    std::sort(tiers.begin(), tiers.end());
    tiers.erase(std::unique(tiers.begin(), tiers.end()), tiers.end());
    const bool whole_chunks = request.placement == Placement::kNaive || request.placement == Placement::kBase;
    if (request.placement != Placement::kOurs) {
      EXPECT_LE(tiers.size(), whole_chunks ? 1u : request.n_tiers);
    }
  }
}

TEST(MakePlan, KeepsEveryLimitOfAThousandShapesAndSpecs) {
  Random random(7);
  size_t refused = 0;
  constexpr int kCases = AllOrFew(1000, 30);
  for (int i = 0; i < kCases; ++i) {
    const bool large = i % 100 == 0;
    ModelConfig config =
        Model(1 + static_cast<uint32_t>(random.Below(3)), 2 + static_cast<uint32_t>(random.Below(large ? 511 : 15)),
              8 * (1 + static_cast<uint32_t>(random.Below(300))), 8 * (1 + static_cast<uint32_t>(random.Below(300))));
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) config.dense_layer[layer] = random.Below(4) == 0;
    NpuSpec spec = AllSpecs()[random.Below(AllSpecs().size())];
    spec.max_channels >>= random.Below(6);
    spec.max_axis >>= random.Below(8);
    spec.max_matmul_axis = spec.max_axis;
    spec.max_program_weight_bytes >>= random.Below(8);
    spec.max_programs = 1 + random.Below(120);
    PlanRequest request;
    request.chunk_tokens = 1 + static_cast<uint32_t>(random.Below(700));
    request.moe_batch_tokens = 1 + static_cast<uint32_t>(random.Below(8192));
    request.prompt_tokens = 1 + static_cast<uint32_t>(random.Below(40000));
    request.placement = kPlacements[random.Below(std::size(kPlacements))];
    request.objective = static_cast<Objective>(random.Below(3));
    request.n_tiers = 1 + static_cast<uint32_t>(random.Below(4));
    request.expert_weights = AnyFormat(random);
    request.attention_weights = AnyFormat(random);
    const RoutingStats stats =
        Routing(config, 64 + static_cast<uint32_t>(random.Below(1000)), random.Uniform() * 1.5, random.Next());
    const auto plan = MakePlan(config, stats, spec, request);
    if (!plan.ok()) {
      EXPECT_EQ(plan.error().code, Code::kUnsupported) << plan.error().message;
      EXPECT_NE(plan.error().message.find("limit max_"), std::string::npos) << plan.error().message;
      ++refused;
      continue;
    }
    ExpectWithinLimits(plan->plan, config, spec, request);
    if (HasFailure()) FAIL() << "case " << i;
  }
  EXPECT_LT(refused, static_cast<size_t>(kCases * 3 / 10));
}

TEST(MakePlan, StopsWhereItIsTold) {
  const ModelConfig config = Model(6, 16, 256, 128);
  const RoutingStats stats = Routing(config, 500, 1.0, 3);
  NpuSpec spec = **FindSpec("m2-max");
  spec.max_programs = 4;  // programs are spread over the layers: every part of the search runs
  for (const Placement placement : kPlacements) {
    PlanRequest request;
    request.placement = placement;
    size_t n_asked = 0;
    ASSERT_TRUE(MakePlan(config, stats, spec, request, [&] { return ++n_asked > 0; }).ok());
    EXPECT_GE(n_asked, config.n_layers);
    for (size_t last = 0; last < n_asked; last += 1 + n_asked / AllOrFew(20, 3)) {
      size_t asked = 0;
      const auto stopped = MakePlan(config, stats, spec, request, [&] { return asked++ < last; });
      ASSERT_FALSE(stopped.ok());
      EXPECT_EQ(stopped.error().code, Code::kCancelled);
      EXPECT_EQ(asked, last + 1) << "asked again after a no";
    }
  }
}

TEST(MakePlan, IsDeterministic) {
  const ModelConfig config = Model(2, 40, 256, 128);
  const RoutingStats stats = Routing(config, 512, 0.8, 3);
  for (const Placement placement : kPlacements) {
    PlanRequest request;
    request.placement = placement;
    const auto a = MakePlan(config, stats, Spec("m4"), request), b = MakePlan(config, stats, Spec("m4"), request);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(ToJson(a->plan), ToJson(b->plan));
    EXPECT_EQ(a->reasons, b->reasons);
  }
}

struct SmallCase {
  const ModelConfig& config;
  const RoutingStats& stats;
  const NpuSpec& spec;
  const PlanRequest& request;
  const Plan& plan;

  LayerCost CostOf(const LayerPlan& layer, uint32_t index) const {
    if (plan.order == PrefillOrder::kWavefront) {
      return LayerCoster(config, stats.layers[index].loads[0], spec, plan.expert_weights, true, plan.joule_price,
                         Halves(index))
          .Of(layer);
    }
    return ExpectedLayerCost(config, stats.layers[index], 0, layer, spec, plan.expert_weights, plan.per_run_capacity,
                             plan.joule_price);
  }
  // Of a batch of two chunks: each one's experts beside the other's attention.
  ExpertRuns Halves(uint32_t index) const {
    const uint32_t chunk = plan.chunk_tokens;
    ExpertRuns runs{{{}, {}}};
    for (uint32_t half = 0; half < 2 && plan.layers[index].attention == AttentionPlace::kNpu; ++half) {
      const uint32_t other = (1 - half) * chunk;
      runs.beside[half].npu = ExpectedAttentionCost(config, spec, AttentionPlace::kNpu, true, chunk, other,
                                                    other + chunk, plan.kv_buckets, plan.attention_weights)
                                  .npu_seconds;
      runs.beside[half].cpu = ExpertScatterSeconds(config, spec, chunk) + AttentionCopySeconds(config, spec, chunk);
    }
    return runs;
  }
  std::vector<AttentionCost> Attention() const {
    std::vector<AttentionCost> costs;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
      costs.push_back(ExpectedAttentionCost(config, spec, plan.layers[layer].attention, true, plan.chunk_tokens, 0,
                                            plan.moe_batch_tokens, plan.kv_buckets, plan.attention_weights));
    }
    return costs;
  }
  // What the objective says of a whole plan of these layers.
  double ScoreOf(std::span<const LayerPlan> layers, std::span<const LayerCost> costs) const {
    const PlanCost cost = ExpectedPlanCost(config, plan, layers, Attention(), costs, spec);
    if (request.objective == Objective::kTime) return cost.seconds;
    return request.objective == Objective::kEnergy ? cost.joules : cost.joules * cost.seconds;
  }
  double ScoreOfPlan() const {
    std::vector<LayerCost> costs;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) costs.push_back(CostOf(plan.layers[layer], layer));
    return ScoreOf(plan.layers, costs);
  }
  std::string Name() const {
    return fmt::format("placement {} objective {} {} dim {} expert_dim {} experts {} {} programs {} load {:.5f}",
                       ToString(request.placement), ToString(request.objective), spec.name, config.dim,
                       config.expert_dim, config.n_experts, ToString(plan.expert_weights), spec.max_programs,
                       spec.load_seconds.value);
  }
};

// Visits every split of the experts into at most 3 groups and (if allowed) the CPU, with every capacity of
// `capacities` for a static group and all of them as the menu of a group chosen per run.
void Enumerate(const SmallCase& c, const std::vector<uint32_t>& capacities,
               const std::function<void(const LayerPlan&)>& visit) {
  LayerPlan layer;
  const std::function<void(uint32_t)> place = [&](uint32_t expert) {
    if (expert < c.config.n_experts) {
      const size_t n_groups = layer.groups.size();
      for (size_t g = 0; g <= n_groups && g < 3; ++g) {
        if (g == n_groups) layer.groups.push_back({{}, capacities});
        layer.groups[g].experts.push_back(expert);
        place(expert + 1);
        layer.groups[g].experts.pop_back();
        if (g == n_groups) layer.groups.pop_back();
      }
      if (c.request.placement == Placement::kTiersGroups) return;
      layer.cpu_experts.push_back(expert);
      place(expert + 1);
      layer.cpu_experts.pop_back();
      return;
    }
    size_t n_choices = 1;
    for (size_t g = 0; g < layer.groups.size() && !c.plan.per_run_capacity; ++g) n_choices *= capacities.size();
    for (size_t choice = 0; choice < n_choices; ++choice) {
      LayerPlan candidate = layer;
      size_t rest = choice;
      for (ExpertGroup& group : candidate.groups) {
        if (c.plan.per_run_capacity) continue;
        group.capacities = {capacities[rest % capacities.size()]};
        rest /= capacities.size();
      }
      visit(candidate);
    }
  };
  place(0);
}

// The search is a heuristic: of 3,000 such cases ten were beyond 2 %, the worst by 4.4 %.
TEST(MakePlan, IsWithinTwoPercentOfTheBestPlanOfNearlyAllSmallCases) {
  size_t n_beyond = 0;
  Random random(11);
  for (int i = 0; i < AllOrFew(200, 20); ++i) {
    PlanRequest request;
    request.chunk_tokens = request.moe_batch_tokens = request.prompt_tokens = 128;
    request.placement = std::array{Placement::kOurs, Placement::kAll, Placement::kTiersGroups}[random.Below(3)];
    request.objective = static_cast<Objective>(random.Below(3));
    request.expert_weights = AnyFormat(random);
    const bool ours = request.placement == Placement::kOurs;
    const ModelConfig config =
        Model(1, 2 + static_cast<uint32_t>(random.Below(ours ? 5 : 4)), 256 << random.Below(5), 256 << random.Below(5));
    const RoutingStats stats = Routing(config, 128, random.Uniform() * 1.5, random.Next());
    const NpuSpec& spec = AllSpecs()[random.Below(AllSpecs().size())];
    const auto made = MakePlan(config, stats, spec, request);
    ASSERT_TRUE(made.ok()) << made.error().message;
    const SmallCase c{config, stats, spec, request, made->plan};
    double best = 1e30;
    Enumerate(c, {32, 64, 96, 128}, [&](const LayerPlan& layer) {
      const LayerCost cost = c.CostOf(layer, 0);
      best = std::min(best, c.ScoreOf({&layer, 1}, {&cost, 1}));
    });
    if (c.ScoreOfPlan() > 1.02 * best) ++n_beyond;
    EXPECT_LE(c.ScoreOfPlan(), 1.06 * best) << "case " << i << " " << c.Name();
  }
  EXPECT_LE(n_beyond, 2u);
}

TEST(MakePlan, IsWithinTwoPercentOfTheBestWavefrontOfNearlyAllSmallCases) {
  size_t n_beyond = 0;
  Random random(17);
  for (int i = 0; i < AllOrFew(100, 10); ++i) {
    PlanRequest request;
    request.chunk_tokens = 64;
    request.moe_batch_tokens = request.prompt_tokens = 128;
    request.order = PrefillOrder::kWavefront;
    request.objective = static_cast<Objective>(random.Below(3));
    request.expert_weights = AnyFormat(random);
    const ModelConfig config =
        Model(1, 2 + static_cast<uint32_t>(random.Below(5)), 256 << random.Below(5), 256 << random.Below(5));
    const RoutingStats stats = Routing(config, 64, random.Uniform() * 1.5, random.Next());
    const NpuSpec& spec = AllSpecs()[random.Below(AllSpecs().size())];
    const auto made = MakePlan(config, stats, spec, request);
    ASSERT_TRUE(made.ok()) << made.error().message;
    ASSERT_EQ(made->plan.order, PrefillOrder::kWavefront);
    const SmallCase c{config, stats, spec, request, made->plan};
    double best = 1e30;
    Enumerate(c, {32, 64}, [&](const LayerPlan& layer) {
      LayerPlan candidate = layer;
      candidate.attention = c.plan.layers[0].attention;
      const LayerCost cost = c.CostOf(candidate, 0);
      best = std::min(best, c.ScoreOf({&candidate, 1}, {&cost, 1}));
    });
    if (c.ScoreOfPlan() > 1.02 * best) ++n_beyond;
    EXPECT_LE(c.ScoreOfPlan(), 1.06 * best) << "case " << i << " " << c.Name();
  }
  EXPECT_LE(n_beyond, 2u);
}

// Of two toy layers in every order: what edp makes small is never larger than in the plans for energy and time.
TEST(MakePlan, NoPlanForEdpHasALargerProductThanThoseForEnergyAndTime) {
  Random random(23);
  for (int i = 0; i < AllOrFew(8, 1); ++i) {
    PlanRequest request;
    request.chunk_tokens = 64;
    request.moe_batch_tokens = request.prompt_tokens = 128u << random.Below(3);
    request.expert_weights = AnyFormat(random);
    const ModelConfig config =
        Model(2, 2 + static_cast<uint32_t>(random.Below(7)), 256 << random.Below(5), 256 << random.Below(5));
    const RoutingStats stats = Routing(config, 64, random.Uniform() * 1.5, random.Next());
    const NpuSpec& spec = AllSpecs()[random.Below(AllSpecs().size())];
    for (const auto order : {std::optional(PrefillOrder::kLayerMajor), std::optional(PrefillOrder::kWavefront),
                             std::optional<PrefillOrder>()}) {
      request.order = order;
      const auto product = [&](Objective objective) {
        request.objective = objective;
        const Plan plan = MakePlan(config, stats, spec, request)->plan;
        EXPECT_EQ(plan.objective, objective);
        return plan.expected_seconds * plan.expected_joules;
      };
      const double edp = product(Objective::kEnergyDelay);
      for (const Objective end : {Objective::kEnergy, Objective::kTime}) {
        EXPECT_LE(edp, product(end) * (1 + 1e-12))
            << "case " << i << ", " << (order ? ToString(*order) : "auto") << ", " << ToString(end);
      }
    }
  }
}

TEST(MakePlan, OrdersAreAskedForOrChosen) {
  ModelConfig config = ShapeByName("phi-tiny-moe").value();  // attention takes as long as experts
  config.n_layers = 2;
  config.dense_layer.resize(2);
  const RoutingStats stats = Routing(config, 2048, 0.8, 3);
  PlanRequest request;
  const auto made = [&](const NpuSpec& spec) { return MakePlan(config, stats, spec, request); };
  const NpuSpec spec = Spec("m2-max");
  request.order = PrefillOrder::kLayerMajor;
  const Plan whole = made(spec)->plan;
  EXPECT_EQ(whole.order, PrefillOrder::kLayerMajor);
  request.order = PrefillOrder::kWavefront;
  const Plan halves = made(spec)->plan;
  EXPECT_EQ(halves.order, PrefillOrder::kWavefront);
  EXPECT_LT(halves.expected_seconds, whole.expected_seconds);
  request.order.reset();
  const Plan chosen = made(spec)->plan;
  EXPECT_LE(chosen.expected_seconds, whole.expected_seconds * (1 + 1e-9));
  EXPECT_LE(chosen.expected_joules, 1.26 * whole.expected_joules);
  // Where two layers do not fit, nobody gets a wavefront.
  NpuSpec small = spec;
  small.max_programs = 3;
  EXPECT_EQ(made(small)->plan.order, PrefillOrder::kLayerMajor);
  request.order = PrefillOrder::kWavefront;
  const auto refused = made(small);
  if (refused.ok()) {
    for (const LayerPlan& layer : refused->plan.layers) EXPECT_LE(layer.groups.size(), 2u);
  } else {
    EXPECT_NE(refused.error().message.find("two layers in a row do not fit"), std::string::npos);
  }
}

// Two layers whose programs may not all fit: every pair of layer plans, priced with the loads.
TEST(MakePlan, IsWithinTwoPercentOfTheBestPairWhenProgramsTakeTurns) {
  Random random(13);
  size_t tight = 0;
  for (int i = 0; i < AllOrFew(120, 40); ++i) {
    PlanRequest request;
    request.chunk_tokens = request.moe_batch_tokens = request.prompt_tokens = 128;
    request.placement = random.Below(2) == 0 ? Placement::kOurs : Placement::kAll;
    request.objective = static_cast<Objective>(random.Below(3));
    request.expert_weights = AnyFormat(random);
    const ModelConfig config =
        Model(2, request.placement == Placement::kOurs ? 3 : 2, 512 << random.Below(4), 512 << random.Below(4));
    const RoutingStats stats = Routing(config, 128, random.Uniform() * 1.5, random.Next());
    NpuSpec spec = AllSpecs()[random.Below(AllSpecs().size())];
    spec.max_programs = 2 + random.Below(4);  // two of them are attention's
    spec.load_seconds.value *= std::pow(10, -2 + 3 * random.Uniform());
    const auto made = MakePlan(config, stats, spec, request);
    ASSERT_TRUE(made.ok()) << made.error().message;
    const SmallCase c{config, stats, spec, request, made->plan};
    std::vector<std::pair<LayerPlan, LayerCost>> options[2];
    for (uint32_t layer = 0; layer < 2; ++layer) {
      Enumerate(c, {32, 64, 96, 128},
                [&](const LayerPlan& option) { options[layer].emplace_back(option, c.CostOf(option, layer)); });
    }
    double best = 1e30;
    for (const auto& [first, first_cost] : options[0]) {
      for (const auto& [second, second_cost] : options[1]) {
        const LayerPlan layers[] = {first, second};
        const LayerCost costs[] = {first_cost, second_cost};
        best = std::min(best, c.ScoreOf(layers, costs));
      }
    }
    const double got = c.ScoreOfPlan();
    EXPECT_LE(got, 1.02 * best) << "case " << i << " " << c.Name();
    const double claimed = request.objective == Objective::kTime     ? c.plan.expected_seconds
                           : request.objective == Objective::kEnergy ? c.plan.expected_joules
                                                                     : c.plan.expected_seconds * c.plan.expected_joules;
    EXPECT_NEAR(got, claimed, 1e-9 * claimed);
    tight += made->load_seconds > 0;
  }
  EXPECT_GT(tight, AllOrFew(5u, 0u));  // plans in which programs do take turns
}

TEST(MakePlan, EachStepOfTheAblationHelpsAndOursBeatsThePaper) {
  const ModelConfig config = Model(1, 64, 1024, 512);
  const RoutingStats stats = Routing(config, 256, 0.8, 5);
  PlanRequest request;
  request.moe_batch_tokens = request.chunk_tokens;
  std::vector<double> seconds;
  for (const Placement placement :
       {Placement::kBase, Placement::kTiers, Placement::kTiersGroups, Placement::kAll, Placement::kOurs}) {
    request.placement = placement;
    const auto plan = MakePlan(config, stats, Spec("m2-max"), request);
    ASSERT_TRUE(plan.ok());
    seconds.push_back(ExpectedLayerCost(config, stats.layers[0], 0, plan->plan.layers[0], Spec("m2-max"),
                                        WeightFormat::kFp16, plan->plan.per_run_capacity)
                          .Seconds());
  }
  for (size_t i = 1; i < seconds.size(); ++i) EXPECT_LE(seconds[i], seconds[i - 1] * 1.001) << i;
  EXPECT_LT(seconds[2], seconds[1] / 2);  // 64 dispatches become a few
}

TEST(MakePlan, BaselinesAreWhatTheySay) {
  const ModelConfig config = Model(2, 5, 64, 32);
  const RoutingStats stats = Routing(config, 256, 0.8, 5);
  PlanRequest request;
  const auto make = [&](Placement placement) {
    request.placement = placement;
    return MakePlan(config, stats, Spec("m2-max"), request)->plan;
  };
  for (const Placement placement : {Placement::kNaive, Placement::kBase}) {
    const Plan plan = make(placement);
    EXPECT_EQ(plan.order, PrefillOrder::kChunkMajor);
    EXPECT_FALSE(plan.per_run_capacity);
    EXPECT_EQ(plan.moe_batch_tokens, 256u);
    ASSERT_EQ(plan.layers[1].groups.size(), 5u);
    for (const ExpertGroup& group : plan.layers[1].groups) EXPECT_EQ(group.capacities, std::vector<uint32_t>{256});
    EXPECT_EQ(plan.layers[0].attention, placement == Placement::kNaive ? AttentionPlace::kCpu : AttentionPlace::kNpu);
  }
  EXPECT_EQ(make(Placement::kCpu).layers[0].cpu_experts.size(), 5u);
  EXPECT_EQ(make(Placement::kCpu).layers[0].attention, AttentionPlace::kCpu);
  EXPECT_EQ(make(Placement::kAnemll).layers[0].cpu_experts.size(), 5u);
  EXPECT_EQ(make(Placement::kAnemll).layers[0].attention, AttentionPlace::kNpu);
  EXPECT_EQ(make(Placement::kTiers).layers[0].groups.size(), 5u);
  EXPECT_TRUE(make(Placement::kTiersGroups).layers[0].cpu_experts.empty());
  const Plan ours = make(Placement::kOurs);
  EXPECT_EQ(ours.order, PrefillOrder::kLayerMajor);
  EXPECT_TRUE(ours.per_run_capacity);
  EXPECT_EQ(ours.moe_batch_tokens, 4096u);
  EXPECT_EQ(ours.kv_buckets, KvBuckets(Spec("m2-max"), 256, ours.kv_buckets.back(), /*fine=*/true));
  EXPECT_GT(ours.kv_buckets.size(), make(Placement::kAnemll).kv_buckets.size());
}

TEST(MakePlan, OursPutsAttentionWhereTheObjectiveWantsIt) {
  // 8 chunks of small matrices: dispatch floors on the NPU, little work on the CPU.
  const ModelConfig config = Model(1, 4, 64, 32);
  const RoutingStats stats = Routing(config, 256, 0.5, 5);
  PlanRequest request;
  const auto place = [&](const NpuSpec& spec) {
    return MakePlan(config, stats, spec, request)->plan.layers[0].attention;
  };
  EXPECT_EQ(place(Spec("m2-max")), AttentionPlace::kCpu);
  EXPECT_EQ(place(SlowCpu("m2-max")), AttentionPlace::kNpu);
  // The paper's plan keeps it on the NPU whatever it costs.
  request.placement = Placement::kAll;
  EXPECT_EQ(place(Spec("m2-max")), AttentionPlace::kNpu);
  // As fast on the CPU, but at a hundred times the power: the objective decides.
  request.placement = Placement::kOurs;
  NpuSpec hot = Spec("m2-max");
  hot.cpu_watts.value *= 100;
  EXPECT_EQ(place(hot), AttentionPlace::kCpu);
  request.objective = Objective::kEnergy;
  EXPECT_EQ(place(hot), AttentionPlace::kNpu);
}

TEST(MakePlan, OursIsNeverWorseThanAttentionOnEitherSide) {
  // Never worse than either side as a whole, whatever each layer alone would like.
  const ModelConfig config = Model(6, 0, 256, 0);
  PlanRequest request;
  request.chunk_tokens = request.moe_batch_tokens = request.prompt_tokens = 1024;
  request.objective = Objective::kEnergyDelay;
  const auto cost = [&](Placement placement) {
    request.placement = placement;
    const Plan plan = MakePlan(config, {}, Spec("m2-max"), request)->plan;
    return plan.expected_seconds * plan.expected_joules;
  };
  const double ours = cost(Placement::kOurs);
  EXPECT_LE(ours, 1.0001 * cost(Placement::kCpu));
  EXPECT_LE(ours, 1.0001 * cost(Placement::kAnemll));
}

TEST(MakePlan, MenusServeShortBatchesToo) {
  // Four experts see 256 rows of a short batch each: about where arithmetic, not weights, sets the time.
  const ModelConfig config = Model(1, 4, 1024, 1024);
  const RoutingStats stats = Routing(config, 4096, 0.3, 5);
  const auto made = MakePlan(config, stats, Spec("m4"), {});
  ASSERT_TRUE(made.ok());
  const LayerPlan& layer = made->plan.layers[0];
  ASSERT_FALSE(layer.groups.empty());
  LayerPlan searched = layer;
  for (ExpertGroup& group : searched.groups) {
    const uint32_t smallest = group.capacities[0], largest = group.capacities.back();
    EXPECT_LE(smallest, largest / 8 + 32);
  }
  // A prompt of 512 tokens in a plan for 4,096: cheaper than with full batches' capacities alone.
  RoutingStats quiet = stats;
  for (auto& histogram : quiet.layers[0].loads[0]) histogram = ScaleLoads(histogram, 0.125, 512);
  for (ExpertGroup& group : searched.groups) {
    group.capacities.erase(group.capacities.begin(),
                           group.capacities.end() - std::min<ptrdiff_t>(4, group.capacities.size()));
  }
  const auto seconds = [&](const LayerPlan& plan) {
    return ExpectedLayerCost(config, quiet.layers[0], 0, plan, Spec("m4"), WeightFormat::kFp16, true).Seconds();
  };
  EXPECT_LT(seconds(layer), 0.95 * seconds(searched));
}

TEST(MakePlan, RangesThatEndangerHalfPrecisionMoveWork) {
  const ModelConfig config = Model(4, 4, 64, 32);
  RoutingStats stats = Routing(config, 256, 0.5, 5);
  stats.layers[1].range.residual = 20000;  // above 65504 / 4 = 16376
  stats.layers[2].range.hidden = 100000;   // 100000 / 8 = 12500 is safe, / 4 is not
  stats.layers[3].range.gate = 17000;      // no scale helps a gate
  const auto made = MakePlan(config, stats, SlowCpu("m2-max"), {});
  ASSERT_TRUE(made.ok());
  const auto& layers = made->plan.layers;
  EXPECT_EQ(layers[0].attention, AttentionPlace::kNpu);
  EXPECT_EQ(layers[0].expert_scale, 1);
  EXPECT_EQ(layers[1].attention, AttentionPlace::kCpu);
  EXPECT_EQ(layers[2].expert_scale, 8);
  EXPECT_EQ(layers[3].cpu_experts.size(), 4u);
  const auto says = [&](const std::string& text) {
    return std::any_of(made->reasons.begin(), made->reasons.end(),
                       [&](const std::string& line) { return line.find(text) != std::string::npos; });
  };
  EXPECT_TRUE(says("layer 1: attention on the CPU: residual reached 20000"));
  EXPECT_TRUE(says("layer 2: experts are scaled by 1/8"));
  EXPECT_TRUE(says("layer 3: experts on the CPU: gate reached 17000"));
  EXPECT_TRUE(says("simulated"));
}

TEST(MakePlan, RefusesWhatItCannotPlan) {
  const ModelConfig config = Model(1, 4, 64, 32);
  const RoutingStats stats = Routing(config, 256, 0.5, 5);
  const auto message = [&](const RoutingStats& s, const NpuSpec& spec, const PlanRequest& request) {
    const auto plan = MakePlan(config, s, spec, request);
    return plan.ok() ? std::string() : plan.error().message;
  };
  EXPECT_EQ(message(stats, Spec("m4"), {}), "");
  RoutingStats empty = stats;
  empty.n_tokens = 0;
  EXPECT_EQ(message(empty, Spec("m4"), {}), "routing statistics: no tokens: the calibration text was empty");
  RoutingStats other = stats;
  other.n_experts = 8;
  EXPECT_EQ(message(other, Spec("m4"), {}), "routing statistics: 1 layers of 8 experts, the model has 1 of 4");
  RoutingStats fewer = stats;
  fewer.top_k = stats.top_k + 1;
  EXPECT_EQ(message(fewer, Spec("m4"), {}),
            fmt::format("routing statistics: {} experts a token, the model has {}", fewer.top_k, config.top_k));
  NpuSpec narrow = Spec("m4");
  narrow.max_channels = 63;
  EXPECT_EQ(message(stats, narrow, {}), "npu m4: limit max_channels is 63, one expert has 64");
  NpuSpec small = Spec("m4");
  small.max_program_weight_bytes = kGraphConstantBytes + 64 * 32 * 6 - 1;
  EXPECT_EQ(message(stats, small, {}), fmt::format("npu m4: limit max_program_weight_bytes is {}, one expert has {}",
                                                   small.max_program_weight_bytes, kGraphConstantBytes + 64 * 32 * 6));
  ++small.max_program_weight_bytes;
  EXPECT_EQ(message(stats, small, {}), "");
  PlanRequest zero;
  zero.chunk_tokens = 0;
  EXPECT_EQ(message(stats, Spec("m4"), zero),
            "planner: chunk 0, moe batch 4096 and prompt 4096 tokens, wanted above 0");
}

TEST(MakePlan, UnseenExpertsAndDenseModelsHaveAPlan) {
  ModelConfig config = Model(2, 6, 64, 32);
  config.dense_layer[0] = true;
  RoutingStats stats = Routing(config, 256, 0.5, 5);
  for (const uint32_t unseen : {1u, 4u}) {
    stats.layers[1].loads[0][unseen] = {};
    stats.layers[1].tokens[unseen] = 0;
  }
  for (const Placement placement : kPlacements) {
    PlanRequest request;
    request.placement = placement;
    const auto made = MakePlan(config, stats, Spec("m1"), request);
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_TRUE(CheckPlan(made->plan, config).ok());
    EXPECT_TRUE(std::any_of(made->reasons.begin(), made->reasons.end(), [](const std::string& line) {
      return line.find("2 experts never seen keep a place") != std::string::npos;
    }));
  }
  const ModelConfig dense = Model(2, 0, 64, 32);
  const auto made = MakePlan(dense, {}, SlowCpu("m1"), {});
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_TRUE(CheckPlan(made->plan, dense).ok());
  EXPECT_EQ(made->plan.layers[1].attention, AttentionPlace::kNpu);
}

TEST(MakePlan, GivesUpGroupsWhenLoadingThemCostsMore) {
  // Three programs for four layers of attention alone: nothing can stay loaded but what is on the CPU.
  const ModelConfig config = Model(4, 16, 512, 256);
  const RoutingStats stats = Routing(config, 4096, 0.8, 5);
  NpuSpec spec = Spec("m4");
  spec.cpu_flops_per_second.value /= 4;  // attention is the NPU's
  const auto roomy = MakePlan(config, stats, spec, {});
  spec.max_programs = 5;
  spec.load_seconds.value = 1;
  const auto tight = MakePlan(config, stats, spec, {});
  ASSERT_TRUE(roomy.ok() && tight.ok());
  const auto programs = [](const Plan& plan) {
    size_t n = 0;
    for (const LayerPlan& layer : plan.layers) {
      n += layer.groups.size() + (layer.attention == AttentionPlace::kNpu ? 1 : 0);
    }
    return n;
  };
  EXPECT_GE(programs(roomy->plan), 8u);
  EXPECT_LE(programs(tight->plan), 5u);
}

TEST(KvBuckets, DoubleUpToThePromptOrTheAxis) {
  NpuSpec spec = Spec("m2-max");
  EXPECT_EQ(KvBuckets(spec, 256, 1), (std::vector<uint32_t>{0, 256}));
  EXPECT_EQ(KvBuckets(spec, 256, 1025), (std::vector<uint32_t>{0, 256, 512, 1024, 1280}));
  // Fine: 0, doublings up to the step, then steps of an eighth rounded up to chunks.
  EXPECT_EQ(KvBuckets(spec, 256, 4096, true),
            (std::vector<uint32_t>{0, 256, 512, 1024, 1536, 2048, 2560, 3072, 3584, 4096}));
  EXPECT_EQ(KvBuckets(spec, 256, 1025, true), (std::vector<uint32_t>{0, 256, 512, 768, 1024, 1280}));
  EXPECT_EQ(KvBuckets(spec, 64, 1536, true),
            (std::vector<uint32_t>{0, 64, 128, 256, 448, 640, 832, 1024, 1216, 1408, 1536}));
  EXPECT_LE(KvBuckets(spec, 16, 16384, true).size(), 64u);  // what a plan may hold
  spec.max_axis = 1024;
  EXPECT_EQ(KvBuckets(spec, 256, 32768), (std::vector<uint32_t>{0, 256, 512, 768}));
  spec.max_axis = 300;
  EXPECT_EQ(KvBuckets(spec, 256, 32768), (std::vector<uint32_t>{0}));
}

}  // namespace
}  // namespace npumoe
