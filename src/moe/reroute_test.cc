// SPDX-License-Identifier: Apache-2.0
#include "moe/reroute.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace npumoe {
namespace {

TEST(Reroute, MovesTheLeastSalientRowToTheNextChoiceWithRoom) {
  // Three tokens, all at expert 0 which holds one. Token 1 weighs most and stays.
  const std::vector<float> logits{3, 1, 2, 0,  //
                                  3, 1, 2, 0,  //
                                  3, 1, 2, 0};
  std::vector<uint32_t> experts{0, 0, 0};
  std::vector<float> weights{0.5f, 0.75f, 0.25f};
  // Token 0 finds room at expert 2, its best by logit; token 2 then has expert 1 left.
  EXPECT_EQ(Reroute(logits, std::vector<uint32_t>{1, 8, 1, 8}, 1, experts, weights), 2u);
  EXPECT_EQ(experts, (std::vector<uint32_t>{2, 0, 1}));
  EXPECT_FLOAT_EQ(weights[0], 0.5f * std::exp(-1.0f));
  EXPECT_FLOAT_EQ(weights[1], 0.75f);
  EXPECT_FLOAT_EQ(weights[2], 0.25f * std::exp(-2.0f));
}

TEST(Reroute, NeverChoosesAnExpertTwiceAndKeepsWhatNobodyHasRoomFor) {
  const std::vector<float> logits{2, 1, 0, 2, 1, 0};
  std::vector<uint32_t> experts{0, 1, 0, 1};
  std::vector<float> weights{0.6f, 0.4f, 0.7f, 0.3f};
  // Expert 1 has room for none of the others' rows, expert 2 for one.
  EXPECT_EQ(Reroute(logits, std::vector<uint32_t>{1, 2, 1}, 2, experts, weights), 1u);
  EXPECT_EQ(experts, (std::vector<uint32_t>{2, 1, 0, 1}));
  experts = {0, 1, 0, 1};
  EXPECT_EQ(Reroute(logits, std::vector<uint32_t>{1, 2, kNoCapacity}, 2, experts, weights), 0u);
  EXPECT_EQ(experts, (std::vector<uint32_t>{0, 1, 0, 1}));
}

TEST(Reroute, OfEqualWeightsTheLaterTokenLeaves) {
  const std::vector<float> logits(6, 0.0f);
  std::vector<uint32_t> experts{0, 0, 0};
  std::vector<float> weights{0.5f, 0.5f, 0.5f};
  EXPECT_EQ(Reroute(logits, std::vector<uint32_t>{2, 2}, 1, experts, weights), 1u);
  EXPECT_EQ(experts, (std::vector<uint32_t>{0, 0, 1}));
}

TEST(Reroute, FillsRoomBeforeAnythingOverflows) {
  Random random(3);
  constexpr uint32_t kTokens = 200, kExperts = 12, kTopK = 3;
  std::vector<float> logits(kTokens * kExperts);
  for (float& logit : logits) logit = static_cast<float>(random.Below(1000)) / 100;
  std::vector<uint32_t> experts;
  std::vector<float> weights(kTokens * kTopK, 0.3f);
  for (uint32_t token = 0; token < kTokens; ++token) {
    for (uint32_t k = 0; k < kTopK; ++k) experts.push_back((token % 3 + k) % kExperts);  // experts 0 to 4 only
  }
  const std::vector<uint32_t> capacities(kExperts, kTokens * kTopK / kExperts + 5);
  EXPECT_GT(Reroute(logits, capacities, kTopK, experts, weights), 0u);
  std::vector<uint32_t> loads(kExperts);
  for (const uint32_t expert : experts) ++loads[expert];
  for (uint32_t expert = 0; expert < kExperts; ++expert) EXPECT_LE(loads[expert], capacities[expert]) << expert;
  for (uint32_t token = 0; token < kTokens; ++token) {
    EXPECT_NE(experts[token * 3], experts[token * 3 + 1]);
    EXPECT_NE(experts[token * 3 + 1], experts[token * 3 + 2]);
    EXPECT_NE(experts[token * 3], experts[token * 3 + 2]);
  }
}

}  // namespace
}  // namespace npumoe
