// SPDX-License-Identifier: Apache-2.0
#include "moe/layer_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "moe/layer_cuts.h"

namespace npumoe {
namespace {

constexpr uint32_t kScenarios = LoadScenarios::kCount;
// Share of the NPU's second in the price of time, from "NPU time is nearly free" to the opposite.
constexpr std::array kNpuShares{0.03, 0.15, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 0.97};
constexpr std::array kEnergyShares{0.0, 0.5, 1.0};  // of energy in the price, when the objective has energy in it
constexpr size_t kPolishWork = 8'000;               // evaluations times experts: keeps planning a layer below a second

// Joules count as the seconds in which the CPU would burn them.
std::vector<SidePrices> Prices(Objective objective, double joule_price, const NpuSpec& spec) {
  std::vector<double> shares(kEnergyShares.begin(), kEnergyShares.end());
  if (objective == Objective::kTime) {
    const double burnt = joule_price * spec.cpu_watts.value;
    shares = {0.0};
    if (burnt > 0) shares.push_back(burnt / (1 + burnt));
  }
  std::vector<SidePrices> prices;
  for (const double energy : shares) {
    for (const double npu : kNpuShares) {
      prices.push_back(
          {(1 - energy) * npu, energy / spec.cpu_watts.value, (1 - energy) * (1 - npu) + energy, 1 - energy});
      if (energy == 1) break;  // nothing of time is left to share
    }
  }
  return prices;
}

// A plan of a layer while it is being searched, with the prices it was made at.
struct Draft {
  LayerPlan plan;
  SidePrices prices;
  std::vector<uint32_t> ladder;  // static plans: the tiers
  LayerCost cost;
  double score = 0;
};

class LayerSearch {
 public:
  LayerSearch(const LayerCoster& coster, const GroupRules& rules, Objective objective, const RestOfPlan& rest,
              KnownCuts& known)
      : coster_(coster),
        known_(known),
        rules_(rules),
        objective_(objective),
        rest_(rest),
        n_(coster.scenarios().n_experts()),
        order_(n_) {
    std::iota(order_.begin(), order_.end(), 0u);
    const auto& mean = coster.scenarios().mean;
    std::stable_sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) { return mean[a] > mean[b]; });
    rows_.resize(n_ * kScenarios);
    most_.resize(n_);
    for (uint32_t s = 0; s < kScenarios; ++s) {
      for (uint32_t expert = 0; expert < n_; ++expert) {
        rows_[expert * kScenarios + s] = Load(s, expert);
        most_[expert] = std::max(most_[expert], Load(s, expert));
      }
    }
    const auto& all = coster.scenarios().loads;
    ladder_ = Ladder({all.begin(), all.end()});
  }

  std::vector<LayerOption> Run(std::span<const double> load_prices, bool polish) {
    std::vector<std::vector<Draft>> drafts = MakeDrafts(load_prices);
    for (size_t l = 0; l < load_prices.size(); ++l) {
      load_price_ = load_prices[l];
      for (const Draft& draft : drafts[l]) Keep(draft);
      if (polish) PolishAll(drafts[l]);
    }
    for (LayerOption& option : front_) {
      for (ExpertGroup& group : option.plan.groups) std::sort(group.experts.begin(), group.experts.end());
      std::sort(option.plan.cpu_experts.begin(), option.plan.cpu_experts.end());
    }
    std::stable_sort(front_.begin(), front_.end(), [](const LayerOption& a, const LayerOption& b) {
      return a.cost.load_seconds < b.cost.load_seconds;
    });
    return std::move(front_);
  }

 private:
  bool is_static() const { return rules_.n_tiers > 0; }
  uint32_t Load(uint32_t scenario, uint32_t expert) const { return coster_.scenarios().At(scenario)[expert]; }
  double Overflow(uint32_t load, uint32_t capacity) const { return coster_.cpu().Of(load - std::min(load, capacity)); }

  uint32_t Rounded(uint32_t rows) const {
    const uint64_t step = rules_.capacity_step, up = (std::max(rows, 1u) + step - 1) / step * step;
    return static_cast<uint32_t>(std::min<uint64_t>(up, rules_.max_capacity));
  }

  // Capacities worth trying for these loads: quantiles and fractions of the largest, rounded, ascending.
  std::vector<uint32_t> Ladder(std::vector<uint32_t> loads) const {
    std::vector<uint32_t> ladder;
    const uint64_t most = *std::max_element(loads.begin(), loads.end());
    for (uint64_t eighths = 1; eighths <= 8; ++eighths) {
      ladder.push_back(Rounded(static_cast<uint32_t>(most * eighths / 8)));
    }
    auto first = std::partition(loads.begin(), loads.end(), [](uint32_t load) { return load == 0; });
    const auto n = static_cast<double>(loads.end() - first);
    auto begin = first;  // what lies before is smaller
    for (const double quantile : {0.25, 0.5, 0.75, 0.9, 0.95, 0.98}) {
      if (n == 0) break;
      const auto at = first + static_cast<ptrdiff_t>(quantile * n);
      std::nth_element(begin, at, loads.end());
      ladder.push_back(Rounded(*at));
      begin = at;
    }
    std::sort(ladder.begin(), ladder.end());
    ladder.erase(std::unique(ladder.begin(), ladder.end()), ladder.end());
    return ladder;
  }

  std::vector<std::vector<Draft>> MakeDrafts(std::span<const double> load_prices) const;
  std::vector<std::vector<Draft>> MakeMenuDrafts(std::span<const double> load_prices) const;
  void AddAllOnCpu(std::vector<std::vector<Draft>>& drafts) const;
  Draft FromCut(const std::vector<CutRun>& cut, const SidePrices& prices, const std::vector<uint32_t>& ladder) const;
  void PolishAll(std::vector<Draft>& drafts);
  void Keep(const Draft& draft);
  std::vector<size_t> Tiers(const SidePrices& prices, uint32_t n_tiers) const;
  std::vector<uint32_t> Capacities(const Draft& draft, const std::vector<uint32_t>& experts) const;
  std::vector<uint32_t> Menu(const SidePrices& prices, const std::vector<uint32_t>& experts) const;
  void Polish(Draft& best, size_t& budget);
  std::vector<uint32_t> UsedTiers(const LayerPlan& plan) const;
  std::vector<uint32_t> TierChoices(const LayerPlan& plan) const;
  bool Accept(Draft& best, size_t& budget, Draft draft);
  bool TryMove(Draft& best, size_t& budget, size_t from, size_t to, std::span<const uint32_t> there,
               std::span<const uint32_t> back);
  bool PolishGroups(Draft& best, size_t& budget);
  bool PolishExperts(Draft& best, size_t& budget);
  bool PolishSwaps(Draft& best, size_t& budget);
  bool PolishPairs(Draft& best, size_t& budget);
  bool PolishTiers(Draft& best, size_t& budget);

  const LayerCoster& coster_;
  KnownCuts& known_;
  const GroupRules rules_;
  const Objective objective_;
  const RestOfPlan rest_;
  const size_t n_;
  double load_price_ = 0;  // at work
  std::vector<LayerOption> front_;
  std::vector<uint32_t> order_;  // hottest expert first, ties to the lower id
  std::vector<double> rows_;     // [n, kScenarios] loads
  std::vector<uint32_t> most_;   // [n] largest of them
  std::vector<uint32_t> ladder_;
};

// The `n_tiers` capacities of the ladder that serve the experts best when each takes its cheapest and pays its share of
// a full group's dispatch: the best are added one by one, then exchanged while that helps.
std::vector<size_t> LayerSearch::Tiers(const SidePrices& prices, uint32_t n_tiers) const {
  const size_t n_capacities = ladder_.size(), group = std::min(rules_.max_group, n_);
  std::vector<double> cost(n_ * n_capacities);
  for (size_t c = 0; c < n_capacities; ++c) {
    const double share = prices.Npu(coster_.Dispatch(group, ladder_[c])) / static_cast<double>(group);
    for (uint32_t expert = 0; expert < n_; ++expert) {
      double cpu = 0;
      for (uint32_t s = 0; s < kScenarios; ++s) cpu += Overflow(Load(s, expert), ladder_[c]) / kScenarios;
      cost[expert * n_capacities + c] = share + prices.cpu_second * cpu;
    }
  }
  const auto total = [&](const std::vector<size_t>& tiers) {
    double sum = 0;
    for (uint32_t expert = 0; expert < n_; ++expert) {
      double least =
          rules_.allow_cpu ? prices.cpu_second * coster_.CpuSeconds(expert) : std::numeric_limits<double>::max();
      for (const size_t c : tiers) least = std::min(least, cost[expert * n_capacities + c]);
      sum += least;
    }
    return sum;
  };
  std::vector<size_t> tiers;
  while (tiers.size() < std::min<size_t>(n_tiers, n_capacities)) {
    size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    tiers.push_back(0);
    for (size_t c = 0; c < n_capacities; ++c) {
      tiers.back() = c;
      if (const double sum = total(tiers); sum < least) least = sum, best = c;
    }
    tiers.back() = best;
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t& tier : tiers) {
      for (size_t c = 0; c < n_capacities; ++c) {
        const size_t old = tier;
        const double before = total(tiers);
        tier = c;
        if (total(tiers) < before * kLeastGain)
          moved = true;
        else
          tier = old;
      }
    }
  }
  std::sort(tiers.begin(), tiers.end());
  tiers.erase(std::unique(tiers.begin(), tiers.end()), tiers.end());
  return tiers;
}

Draft LayerSearch::FromCut(const std::vector<CutRun>& cut, const SidePrices& prices,
                           const std::vector<uint32_t>& ladder) const {
  Draft draft;
  draft.prices = prices;
  draft.ladder = ladder;
  for (const CutRun& run : cut) {
    const std::vector<uint32_t> experts(order_.begin() + static_cast<ptrdiff_t>(run.first),
                                        order_.begin() + static_cast<ptrdiff_t>(run.last));
    if (run.on_cpu)
      draft.plan.cpu_experts.insert(draft.plan.cpu_experts.end(), experts.begin(), experts.end());
    else
      draft.plan.groups.push_back({experts, Capacities(draft, experts)});
  }
  draft.cost = coster_.Of(draft.plan);
  return draft;
}

// [load prices] drafts of every price between the sides and every number of tiers.
std::vector<std::vector<Draft>> LayerSearch::MakeDrafts(std::span<const double> load_prices) const {
  if (!is_static()) return MakeMenuDrafts(load_prices);
  const LayerCuts cuts(coster_, order_, ladder_, rules_.max_group, rules_.allow_cpu);
  std::vector<std::vector<Draft>> drafts(load_prices.size());
  for (const SidePrices& prices : Prices(objective_, rest_.joule_price, coster_.spec())) {
    // Fewer tiers than allowed can win: experts of one tier share dispatches.
    for (uint32_t n_tiers = 1; n_tiers <= rules_.n_tiers; ++n_tiers) {
      const std::vector<size_t> tiers = Tiers(prices, n_tiers);
      std::vector<uint32_t> ladder;
      for (const size_t c : tiers) ladder.push_back(ladder_[c]);
      const auto cheapest = cuts.Cheapest(prices, tiers, load_prices);
      for (size_t l = 0; l < load_prices.size(); ++l) {
        // A dearer load often changes nothing.
        const bool same = l > 0 && cheapest[l] == cheapest[l - 1];
        Draft draft = same ? drafts[l - 1].back() : FromCut(cheapest[l], prices, ladder);
        drafts[l].push_back(std::move(draft));
      }
    }
  }
  AddAllOnCpu(drafts);
  return drafts;
}

// The same for menus, whose cuts are known from searches for other objectives and at other prices of a joule.
std::vector<std::vector<Draft>> LayerSearch::MakeMenuDrafts(std::span<const double> load_prices) const {
  std::optional<LayerCuts> cuts;
  std::vector<size_t> every(ladder_.size());
  std::iota(every.begin(), every.end(), size_t{0});
  std::vector<std::vector<Draft>> drafts(load_prices.size());
  for (const SidePrices& prices : Prices(objective_, rest_.joule_price, coster_.spec())) {
    const auto is_known = [&](double load_price) { return known_.contains({prices, load_price}); };
    std::vector<std::vector<CutRun>> cheapest;
    if (!std::ranges::all_of(load_prices, is_known)) {
      if (!cuts) cuts.emplace(coster_, order_, ladder_, rules_.max_group, rules_.allow_cpu);
      cheapest = cuts->Cheapest(prices, every, load_prices);
    }
    const CutAtPrice* before = nullptr;
    for (size_t l = 0; l < load_prices.size(); ++l) {
      auto known = known_.find({prices, load_prices[l]});
      const std::vector<CutRun>& cut = known != known_.end() ? known->second.cut : cheapest[l];
      Draft draft;
      if (before != nullptr && cut == before->cut) {
        draft = drafts[l - 1].back();  // a dearer load often changes nothing
      } else if (known != known_.end()) {
        draft = {known->second.plan, prices, ladder_, coster_.Of(known->second.plan)};
      } else {
        draft = FromCut(cut, prices, ladder_);
      }
      if (known == known_.end()) known = known_.try_emplace({prices, load_prices[l]}, cut, draft.plan).first;
      drafts[l].push_back(std::move(draft));
      before = &known->second;
    }
  }
  AddAllOnCpu(drafts);
  return drafts;
}

void LayerSearch::AddAllOnCpu(std::vector<std::vector<Draft>>& drafts) const {
  if (!rules_.allow_cpu) return;
  for (std::vector<Draft>& of_price : drafts) {
    Draft& draft = of_price.emplace_back(of_price[0]);
    draft.plan.groups.clear();
    draft.plan.cpu_experts = order_;
    draft.cost = coster_.Of(draft.plan);
  }
}

void LayerSearch::PolishAll(std::vector<Draft>& drafts) {
  for (Draft& draft : drafts) draft.score = Score(draft.cost, objective_, load_price_, rest_);
  std::stable_sort(drafts.begin(), drafts.end(), [](const Draft& a, const Draft& b) { return a.score < b.score; });
  const auto same = [](const Draft& a, const Draft& b) { return a.score == b.score; };
  drafts.erase(std::unique(drafts.begin(), drafts.end(), same), drafts.end());
  // The best first; each may use half of what those before it left.
  size_t budget = kPolishWork / n_;
  for (Draft& draft : drafts) {
    size_t share = budget - budget / 2;
    budget -= share;
    Polish(draft, share);
    budget += share;
  }
}

// Into the front, unless an option there is no worse in anything that the objective or loading asks for.
void LayerSearch::Keep(const Draft& draft) {
  const bool time = objective_ != Objective::kEnergy, energy = objective_ != Objective::kTime || rest_.joule_price > 0;
  const auto no_worse = [&](const LayerCost& a, const LayerCost& b) {
    return a.load_seconds <= b.load_seconds && (!time || a.Seconds() <= b.Seconds() / kLeastGain) &&
           (!energy || a.joules <= b.joules / kLeastGain);
  };
  for (const LayerOption& option : front_) {
    if (no_worse(option.cost, draft.cost)) return;
  }
  std::erase_if(front_, [&](const LayerOption& option) { return no_worse(draft.cost, option.cost); });
  front_.push_back({draft.plan, draft.cost, load_price_});
}

std::vector<uint32_t> LayerSearch::Capacities(const Draft& draft, const std::vector<uint32_t>& experts) const {
  if (coster_.per_run_capacity()) return Menu(draft.prices, experts);
  uint32_t best = draft.ladder[0];
  double least = std::numeric_limits<double>::infinity();
  for (const uint32_t capacity : draft.ladder) {
    const double npu = draft.prices.Npu(coster_.Dispatch(experts.size(), capacity));
    double cost = 0;
    for (uint32_t s = 0; s < kScenarios; ++s) {
      uint64_t rows = 0;
      double cpu = 0;
      for (const uint32_t expert : experts) {
        rows += Load(s, expert);
        cpu += Overflow(Load(s, expert), capacity);
      }
      if (rows > 0) cost += npu + draft.prices.cpu_second * cpu;
    }
    if (cost < least) least = cost, best = capacity;
  }
  return {best};
}

// Quantiles of the group's own loads and the layer's ladder; whichever is missed least goes until kMaxMenu are left.
std::vector<uint32_t> LayerSearch::Menu(const SidePrices& prices, const std::vector<uint32_t>& experts) const {
  std::vector<uint32_t> loads;
  for (uint32_t s = 0; s < kScenarios; ++s) {
    for (const uint32_t expert : experts) loads.push_back(Load(s, expert));
  }
  std::vector<uint32_t> menu = Ladder(loads);
  const uint32_t top = menu.back();
  std::copy_if(ladder_.begin(), ladder_.end(), std::back_inserter(menu), [&](uint32_t c) { return c < top; });
  std::sort(menu.begin(), menu.end());
  menu.erase(std::unique(menu.begin(), menu.end()), menu.end());
  using Costs = std::array<double, kScenarios>;
  std::vector<Costs> cost(menu.size(), Costs{});  // of the overflow
  Costs on_cpu{};
  const CpuTimes& cpu = coster_.cpu();
  for (const uint32_t expert : experts) {
    const double* const rows = rows_.data() + size_t{expert} * kScenarios;
    const auto add = [&](double capacity, Costs& sum) {
      for (uint32_t s = 0; s < kScenarios; ++s) {  // CpuTimes::Of without branches
        const double over = std::max(rows[s] - capacity, 0.0);
        sum[s] += over * cpu.seconds_per_row + (over > 0 ? cpu.seconds_per_expert : 0.0);
      }
    };
    add(0, on_cpu);
    for (size_t c = 0; c < menu.size() && menu[c] < most_[expert]; ++c) add(menu[c], cost[c]);
  }
  for (double& seconds : on_cpu) seconds *= prices.cpu_second;
  for (size_t c = 0; c < menu.size(); ++c) {
    const double npu = prices.Npu(coster_.Dispatch(experts.size(), menu[c]));
    for (double& seconds : cost[c]) seconds = npu + prices.cpu_second * seconds;
  }
  while (menu.size() > kMaxMenu) {
    // Where a capacity is a scenario's best, the second best takes over when it goes.
    std::vector<double> loss(menu.size(), 0);
    for (uint32_t s = 0; s < kScenarios; ++s) {
      size_t best = 0;
      double second = on_cpu[s];
      for (size_t c = 1; c < menu.size(); ++c) {
        if (cost[c][s] < cost[best][s]) {
          second = std::min(second, cost[best][s]);
          best = c;
        } else {
          second = std::min(second, cost[c][s]);
        }
      }
      loss[best] += std::max(0.0, second - cost[best][s]);
    }
    const auto gone = std::min_element(loss.begin(), loss.end()) - loss.begin();
    menu.erase(menu.begin() + gone);
    cost.erase(cost.begin() + gone);
  }
  return menu;
}

// ---- polishing ----

std::vector<uint32_t> LayerSearch::UsedTiers(const LayerPlan& plan) const {
  std::vector<uint32_t> tiers;
  for (const ExpertGroup& group : plan.groups) {
    if (!group.capacities.empty()) tiers.push_back(group.capacities[0]);
  }
  std::sort(tiers.begin(), tiers.end());
  tiers.erase(std::unique(tiers.begin(), tiers.end()), tiers.end());
  return tiers;
}

// Capacities that a group of a static plan may take: a tier in use, or any while the layer may have one more.
std::vector<uint32_t> LayerSearch::TierChoices(const LayerPlan& plan) const {
  std::vector<uint32_t> used = UsedTiers(plan);
  return used.size() < rules_.n_tiers ? ladder_ : used;
}

// Takes the draft if it scores better and keeps to the number of tiers.
bool LayerSearch::Accept(Draft& best, size_t& budget, Draft draft) {
  if (budget == 0) return false;
  --budget;
  if (is_static() && UsedTiers(draft.plan).size() > rules_.n_tiers) return false;
  draft.cost = coster_.Of(draft.plan);
  draft.score = Score(draft.cost, objective_, load_price_, rest_);
  Keep(draft);
  if (draft.score >= best.score * kLeastGain) return false;
  best = std::move(draft);
  return true;
}

// Moves experts `there` from place `from` to `to` and `back` the other way, if that lowers the score. A place is a
// group's index, the number of groups (the CPU), or one more (a new group).
bool LayerSearch::TryMove(Draft& best, size_t& budget, size_t from, size_t to, std::span<const uint32_t> there,
                          std::span<const uint32_t> back) {
  const size_t n_groups = best.plan.groups.size(), cpu = n_groups;
  if (budget == 0 || from == to || (to == cpu && !rules_.allow_cpu)) return false;
  // Known before anything is copied: with hundreds of experts most moves end here.
  const auto experts_after = [&](size_t index, size_t more, size_t fewer) {
    return (index < cpu ? best.plan.groups[index].experts.size() : 0) + more - fewer;
  };
  if (to != cpu && experts_after(to, there.size(), back.size()) > rules_.max_group) return false;
  if (from != cpu && experts_after(from, back.size(), there.size()) > rules_.max_group) return false;
  Draft draft = best;
  if (to == n_groups + 1) draft.plan.groups.push_back({});
  const auto place = [&](size_t index) -> std::vector<uint32_t>& {
    return index == cpu ? draft.plan.cpu_experts : draft.plan.groups[index > cpu ? cpu : index].experts;
  };
  const auto carry = [&](std::span<const uint32_t> experts, std::vector<uint32_t>& source,
                         std::vector<uint32_t>& target) {
    std::erase_if(source, [&](uint32_t e) { return std::find(experts.begin(), experts.end(), e) != experts.end(); });
    target.insert(target.end(), experts.begin(), experts.end());
  };
  carry(there, place(from), place(to));
  carry(back, place(to), place(from));
  for (const size_t index : {from, to}) {
    if (index == cpu) continue;
    ExpertGroup& group = draft.plan.groups[index > cpu ? cpu : index];
    if (group.experts.size() > rules_.max_group) return false;
    if (is_static() && group.capacities.empty()) group.capacities = {ladder_[0]};  // a new group; tried at all below
    if (!is_static() && !group.experts.empty()) group.capacities = Capacities(draft, group.experts);
  }
  const auto accept = [&](Draft trial) {
    std::erase_if(trial.plan.groups, [](const ExpertGroup& group) { return group.experts.empty(); });
    return Accept(best, budget, std::move(trial));
  };
  if (!is_static()) return accept(std::move(draft));
  // A group that changed may want another tier at once: either side, one at a time.
  bool moved = false;
  for (const size_t index : {to, from}) {
    if (index == cpu) continue;
    const size_t group = index > cpu ? cpu : index;
    for (const uint32_t tier : TierChoices(draft.plan)) {
      Draft trial = draft;
      trial.plan.groups[group].capacities = {tier};
      moved = accept(std::move(trial)) || moved;
    }
  }
  return moved;
}

bool LayerSearch::PolishGroups(Draft& best, size_t& budget) {
  for (size_t from = 0; from < best.plan.groups.size(); ++from) {
    const std::vector<uint32_t> experts = best.plan.groups[from].experts;
    for (size_t to = 0; to <= best.plan.groups.size(); ++to) {
      if (TryMove(best, budget, from, to, experts, {})) return true;
    }
  }
  return false;
}

bool LayerSearch::PolishExperts(Draft& best, size_t& budget) {
  bool moved = false;
  for (size_t i = n_; i-- > 0 && budget > 0;) {  // coldest first: there the two sides meet
    const uint32_t expert = order_[i];
    for (size_t to = 0; to <= best.plan.groups.size() + 1; ++to) {
      if (to < best.plan.groups.size() && best.plan.groups[to].experts.size() >= rules_.max_group) continue;
      size_t from = 0;  // the CPU when no group has it
      const auto has = [&](const ExpertGroup& group) {
        return std::find(group.experts.begin(), group.experts.end(), expert) != group.experts.end();
      };
      while (from < best.plan.groups.size() && !has(best.plan.groups[from])) ++from;
      moved = TryMove(best, budget, from, to, {&expert, 1}, {}) || moved;
    }
  }
  return moved;
}

bool LayerSearch::PolishSwaps(Draft& best, size_t& budget) {
  const auto place_of = [&](uint32_t expert) {
    size_t index = 0;
    while (index < best.plan.groups.size()) {
      const auto& experts = best.plan.groups[index].experts;
      if (std::find(experts.begin(), experts.end(), expert) != experts.end()) break;
      ++index;
    }
    return index;
  };
  bool moved = false;
  for (uint32_t a = 0; a < n_; ++a) {
    for (uint32_t b = a + 1; b < n_ && budget > 0; ++b) {
      moved = TryMove(best, budget, place_of(a), place_of(b), {&a, 1}, {&b, 1}) || moved;
    }
  }
  return moved;
}

// Static plans: another tier for one group, or another capacity for a tier and all its groups.
bool LayerSearch::PolishTiers(Draft& best, size_t& budget) {
  if (!is_static()) return false;
  bool moved = false;
  for (size_t group = 0; group < best.plan.groups.size(); ++group) {
    for (const uint32_t tier : TierChoices(best.plan)) {
      if (best.plan.groups[group].capacities[0] == tier) continue;
      Draft draft = best;
      draft.plan.groups[group].capacities = {tier};
      moved = Accept(best, budget, std::move(draft)) || moved;
    }
  }
  for (const uint32_t tier : UsedTiers(best.plan)) {
    for (const uint32_t capacity : ladder_) {
      Draft draft = best;
      for (ExpertGroup& group : draft.plan.groups) {
        if (group.capacities[0] == tier) group.capacities = {capacity};
      }
      if (capacity != tier) moved = Accept(best, budget, std::move(draft)) || moved;
    }
  }
  return moved;
}

// Two experts at once, each to any place: only few experts leave budget for it. Menus only, tiers would multiply it.
bool LayerSearch::PolishPairs(Draft& best, size_t& budget) {
  if (is_static()) return false;
  // The draft with `expert` in place `to`; the last place but one is the CPU, the last a new group.
  const auto moved = [&](const Draft& from, uint32_t expert, size_t to) {
    Draft draft = from;
    std::erase(draft.plan.cpu_experts, expert);
    for (ExpertGroup& group : draft.plan.groups) {
      if (std::erase(group.experts, expert) > 0 && !group.experts.empty()) {
        group.capacities = Capacities(draft, group.experts);
      }
    }
    if (to == draft.plan.groups.size()) {
      draft.plan.cpu_experts.push_back(expert);
      return draft;
    }
    if (to > draft.plan.groups.size()) draft.plan.groups.emplace_back();
    ExpertGroup& group = draft.plan.groups[std::min(to, draft.plan.groups.size() - 1)];
    group.experts.push_back(expert);
    group.capacities = Capacities(draft, group.experts);
    return draft;
  };
  for (uint32_t a = 0; a < n_; ++a) {
    for (size_t to_a = 0; to_a <= best.plan.groups.size() + 1; ++to_a) {
      const Draft one = moved(best, a, to_a);
      for (uint32_t b = a + 1; b < n_; ++b) {
        for (size_t to_b = 0; to_b <= one.plan.groups.size() + 1; ++to_b) {
          if (budget == 0) return false;
          Draft two = moved(one, b, to_b);
          std::erase_if(two.plan.groups, [](const ExpertGroup& group) { return group.experts.empty(); });
          const auto fits = [&](const ExpertGroup& group) { return group.experts.size() <= rules_.max_group; };
          const bool allowed = (rules_.allow_cpu || two.plan.cpu_experts.empty()) &&
                               std::all_of(two.plan.groups.begin(), two.plan.groups.end(), fits);
          if (allowed && Accept(best, budget, std::move(two))) return true;
        }
      }
    }
  }
  return false;
}

void LayerSearch::Polish(Draft& best, size_t& budget) {
  while (budget > 0) {
    if (PolishTiers(best, budget)) continue;
    if (PolishGroups(best, budget)) continue;
    if (PolishExperts(best, budget)) continue;
    if (PolishSwaps(best, budget)) continue;
    if (!PolishPairs(best, budget)) break;
  }
}

}  // namespace

std::vector<LayerOption> SearchLayer(const LayerCoster& coster, const GroupRules& rules, Objective objective,
                                     const RestOfPlan& rest, std::span<const double> load_prices, bool polish,
                                     KnownCuts& known) {
  NM_CHECK(rules.max_group >= 1 && coster.scenarios().n_experts() >= 1);
  NM_CHECK(coster.per_run_capacity() == (rules.n_tiers == 0));
  return LayerSearch(coster, rules, objective, rest, known).Run(load_prices, polish);
}

size_t BestOption(std::span<const LayerOption> options, Objective objective, const RestOfPlan& rest,
                  double load_price) {
  const auto score = [&](const LayerOption& option) { return Score(option.cost, objective, load_price, rest); };
  const auto best = std::min_element(options.begin(), options.end(),
                                     [&](const LayerOption& a, const LayerOption& b) { return score(a) < score(b); });
  return static_cast<size_t>(best - options.begin());
}

}  // namespace npumoe
