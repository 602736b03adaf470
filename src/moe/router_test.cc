// SPDX-License-Identifier: Apache-2.0
#include "moe/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace npumoe {
namespace {

struct Choice {
  std::vector<uint32_t> experts;
  std::vector<float> weights;
};

Choice RouteWith(RouterRule rule, bool renormalize, float jitter, uint32_t top_k, std::vector<float> logits) {
  ModelConfig config;
  config.n_experts = static_cast<uint32_t>(logits.size());
  config.top_k = top_k;
  config.router = rule;
  config.renormalize_top_k = renormalize;
  config.router_jitter = jitter;
  Choice choice{std::vector<uint32_t>(top_k), std::vector<float>(top_k)};
  std::vector<float> scratch(logits.size());
  Route(config, logits, scratch, choice.experts, choice.weights);
  return choice;
}

// Worked from the published sparsemixer formula; every row also lists the two other rules on the same gates.
struct Row {
  std::vector<float> gates;
  float sparse_a, sparse_b;    // jitter 0.01
  float sharp_a, sharp_b;      // jitter 0
  float winners_a, winners_b;  // softmax of the two winners
  float all_a, all_b;          // softmax of all, not renormalised
};

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows{
      {{2.0f, 1.9f, 0.5f, -1}, 1, 1, 1, 1, .524979f, .475021f, .459189f, .415491f},
      {{2.0f, 1.99f, 0.5f, -1}, .5025f, 1, 1, 1, .5025f, .4975f, .441898f, .437501f},
      {{1, 1, 1, -3}, .333333f, .5f, .333333f, .5f, .5f, .5f, .331311f, .331311f},
      {{-1, -1.005f, -2, -3}, .50125f, 1, 1, 1, .50125f, .49875f, .400284f, .398287f},
      {{0, 0, 0, 0}, .25f, .333333f, .25f, .333333f, .5f, .5f, .25f, .25f},
  };
  return rows;
}

TEST(Route, SparseMixerFollowsThePublishedRule) {
  for (const Row& row : Rows()) {
    const Choice j = RouteWith(RouterRule::kSparseMixer, false, 0.01f, 2, row.gates);
    EXPECT_EQ(j.experts, (std::vector<uint32_t>{0, 1}));
    EXPECT_NEAR(j.weights[0], row.sparse_a, 2e-6);
    EXPECT_NEAR(j.weights[1], row.sparse_b, 2e-6);
    const Choice sharp = RouteWith(RouterRule::kSparseMixer, false, 0.0f, 2, row.gates);
    EXPECT_NEAR(sharp.weights[0], row.sharp_a, 2e-6);
    EXPECT_NEAR(sharp.weights[1], row.sharp_b, 2e-6);
  }
}

TEST(Route, SoftmaxOfTheWinnersSumsToOne) {
  for (const Row& row : Rows()) {
    const Choice c = RouteWith(RouterRule::kTopKSoftmax, false, 0, 2, row.gates);
    EXPECT_NEAR(c.weights[0], row.winners_a, 2e-6);
    EXPECT_NEAR(c.weights[1], row.winners_b, 2e-6);
  }
}

TEST(Route, SoftmaxOverAllKeepsTheLosersShareUnlessRenormalised) {
  for (const Row& row : Rows()) {
    const Choice c = RouteWith(RouterRule::kSoftmaxTopK, false, 0, 2, row.gates);
    EXPECT_NEAR(c.weights[0], row.all_a, 2e-6);
    EXPECT_NEAR(c.weights[1], row.all_b, 2e-6);
    const Choice n = RouteWith(RouterRule::kSoftmaxTopK, true, 0, 2, row.gates);
    EXPECT_NEAR(n.weights[0], row.winners_a, 2e-6);
    EXPECT_NEAR(n.weights[1], row.winners_b, 2e-6);
  }
}

TEST(Route, TiesGoToTheLowerId) {
  EXPECT_EQ(RouteWith(RouterRule::kSoftmaxTopK, true, 0, 3, {1, 5, 5, 5, 1}).experts, (std::vector<uint32_t>{1, 2, 3}));
}

// Straight from the definition: order all ids by (logit falling, id rising), NaN as -inf.
std::vector<uint32_t> Sorted(const std::vector<float>& logits, size_t top_k) {
  const auto value = [&](uint32_t id) {
    return std::isnan(logits[id]) ? -std::numeric_limits<float>::infinity() : logits[id];
  };
  std::vector<uint32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0u);
  std::stable_sort(ids.begin(), ids.end(), [&](uint32_t a, uint32_t b) { return value(a) > value(b); });
  ids.resize(top_k);
  return ids;
}

TEST(Route, ChoosesAsAStableSortDoesForEveryTopK) {
  Random random(1);
  for (const uint32_t n : {1, 2, 7, 60, 128}) {
    for (uint32_t top_k = 1; top_k <= n; top_k += top_k < 9 ? 1 : 17) {
      for (int round = 0; round < 12; ++round) {
        std::vector<float> logits(n);
        for (float& logit : logits) {
          // Many equal values in the later rounds, then -0 beside 0, -inf and NaN.
          logit = static_cast<float>(round < 4 ? random.Gaussian() : static_cast<double>(random.Below(5)) - 2);
          if (round > 7 && random.Below(3) == 0) logit = -0.0f;
          if (round > 8 && random.Below(3) == 0) logit = -std::numeric_limits<float>::infinity();
          if (round > 9 && random.Below(3) == 0) logit = std::numeric_limits<float>::quiet_NaN();
        }
        for (const RouterRule rule : {RouterRule::kSoftmaxTopK, RouterRule::kTopKSoftmax}) {
          ASSERT_EQ(RouteWith(rule, round % 2 == 0, 0, top_k, logits).experts, Sorted(logits, top_k))
              << n << " experts, top " << top_k << ", round " << round;
        }
      }
    }
  }
}

TEST(Route, EveryExpertMayBeChosen) {
  const Choice c = RouteWith(RouterRule::kSoftmaxTopK, false, 0, 3, {std::log(1.0f), std::log(2.0f), std::log(5.0f)});
  EXPECT_EQ(c.experts, (std::vector<uint32_t>{2, 1, 0}));
  EXPECT_NEAR(c.weights[0], 0.625f, 1e-6);
  EXPECT_NEAR(c.weights[1], 0.25f, 1e-6);
  EXPECT_NEAR(c.weights[2], 0.125f, 1e-6);
}

TEST(Route, OneExpertHasWeightOne) {
  EXPECT_EQ(RouteWith(RouterRule::kSoftmaxTopK, false, 0, 1, {-7}).weights[0], 1.0f);
}

TEST(Route, NanAndInfiniteGatesStillGiveDistinctValidIds) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (const RouterRule rule : {RouterRule::kSoftmaxTopK, RouterRule::kTopKSoftmax}) {
    EXPECT_EQ(RouteWith(rule, true, 0, 2, {nan, nan, nan}).experts, (std::vector<uint32_t>{0, 1}));
    EXPECT_EQ(RouteWith(rule, true, 0, 2, {nan, -inf, 3}).experts, (std::vector<uint32_t>{2, 0}));
  }
}

}  // namespace
}  // namespace npumoe
