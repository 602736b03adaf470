// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "npumoe/engine.h"

namespace npumoe {
namespace {

SamplerParams Plain(float temperature, uint64_t seed = 1) {
  SamplerParams params;
  params.temperature = temperature;
  params.top_k = 0;
  params.top_p = 1;
  params.min_p = 0;
  params.seed = seed;
  return params;
}

// How often each id is drawn in `n` draws.
std::map<int32_t, int> Draw(const SamplerParams& params, const std::vector<float>& logits, int n,
                            const std::vector<int32_t>& history = {}) {
  Sampler sampler = Sampler::Make(params).value();
  std::map<int32_t, int> times;
  for (int i = 0; i < n; ++i) ++times[sampler.Sample(logits, history).value()];
  return times;
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowerIdOfATie) {
  EXPECT_EQ(Draw(Plain(0), {1, 3, 3, 2}, 3), (std::map<int32_t, int>{{1, 3}}));
}

TEST(Sampler, DrawsWithTheProbabilitiesOfTheSoftmax) {
  // exp(ln 6) : exp(ln 3) : exp(0) = 6 : 3 : 1. Standard deviation of 20000 draws at p = 0.6 is 69.
  const auto times = Draw(Plain(1), {0, std::log(6.0f), std::log(3.0f)}, 20000);
  EXPECT_NEAR(times.at(1), 12000, 350);
  EXPECT_NEAR(times.at(2), 6000, 325);
  EXPECT_NEAR(times.at(0), 2000, 215);
}

TEST(Sampler, TemperatureSharpens) {
  // At 0.5 the logits double: 36 : 9 : 1.
  EXPECT_NEAR(Draw(Plain(0.5f), {0, std::log(6.0f), std::log(3.0f)}, 20000).at(1), 20000 * 36 / 46, 300);
}

TEST(Sampler, TopKKeepsExactlyK) {
  SamplerParams params = Plain(1);
  params.top_k = 2;
  const auto times = Draw(params, {1, 1, 1, 1.1f}, 2000);
  EXPECT_EQ(times.size(), 2u);
  EXPECT_TRUE(times.contains(3) && times.contains(0));
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesP) {
  SamplerParams params = Plain(1);
  params.top_p = 0.7f;  // 0.6 is not enough, 0.6 + 0.3 is
  const auto times = Draw(params, {0, std::log(6.0f), std::log(3.0f)}, 2000);
  EXPECT_EQ(times.size(), 2u);
  EXPECT_FALSE(times.contains(0));
  params.top_p = 0;
  EXPECT_EQ(Draw(params, {0, 5, 3}, 10).size(), 1u);
}

TEST(Sampler, MinPDropsWhatIsFarBelowTheBest) {
  SamplerParams params = Plain(1);
  params.min_p = 0.4f;  // 3/6 stays, 1/6 goes
  const auto times = Draw(params, {0, std::log(6.0f), std::log(3.0f)}, 2000);
  EXPECT_EQ(times.size(), 2u);
  EXPECT_FALSE(times.contains(0));
}

TEST(Sampler, RepeatPenaltyLooksBackOnlySoFar) {
  SamplerParams params = Plain(0);
  params.repeat_penalty = 2;
  params.repeat_last_n = 2;
  EXPECT_EQ(Draw(params, {4, 3, -1}, 1, {0, 1, 2}).begin()->first, 0);  // 0 is out of reach: 4, 1.5, -2
  EXPECT_EQ(Draw(params, {4, 3, -1}, 1, {1, 2, 0}).begin()->first, 1);  // 2, 3, -2
}

TEST(Sampler, SameSeedSameTokens) {
  const std::vector<float> logits(100, 0.0f);
  EXPECT_EQ(Draw(Plain(1, 42), logits, 50), Draw(Plain(1, 42), logits, 50));
  EXPECT_NE(Draw(Plain(1, 42), logits, 50), Draw(Plain(1, 43), logits, 50));
}

TEST(Sampler, FailsOnABrokenModelAndSkipsForbiddenTokens) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Draw(Plain(0), {-inf, 1, -inf}, 1).begin()->first, 1);
  Sampler sampler = Sampler::Make(Plain(1)).value();
  EXPECT_FALSE(sampler.Sample(std::vector<float>{1, nan}, {}).ok());
  EXPECT_FALSE(sampler.Sample(std::vector<float>{1, inf}, {}).ok());
  EXPECT_FALSE(sampler.Sample(std::vector<float>{-inf, -inf}, {}).ok());
  EXPECT_FALSE(sampler.Sample({}, {}).ok());
}

TEST(Sampler, RefusesParametersOutOfRange) {
  const auto refused = [](auto change) {
    SamplerParams params;
    change(params);
    const auto sampler = Sampler::Make(params);
    return !sampler.ok() && sampler.error().code == Code::kInvalidArgument;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(refused([&](SamplerParams& p) { p.temperature = nan; }));
  EXPECT_TRUE(refused([](SamplerParams& p) { p.temperature = -1; }));
  EXPECT_TRUE(refused([](SamplerParams& p) { p.top_p = 1.5f; }));
  EXPECT_TRUE(refused([&](SamplerParams& p) { p.min_p = nan; }));
  EXPECT_TRUE(refused([](SamplerParams& p) { p.repeat_penalty = 0; }));
  EXPECT_FALSE(refused([](SamplerParams&) {}));
}

}  // namespace
}  // namespace npumoe
