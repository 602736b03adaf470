// SPDX-License-Identifier: Apache-2.0
#include "moe/dispatch.h"

#include <gtest/gtest.h>

#include <vector>

namespace npumoe {
namespace {

// Three tokens, two choices each, four experts; expert 2 gets nothing.
const std::vector<uint32_t> kExperts{3, 0, 0, 1, 3, 1};
const std::vector<float> kWeights{0.75f, 0.25f, 0.5f, 0.5f, 0.9f, 0.1f};

TEST(BuildDispatch, SortsSlotsByExpertAndKeepsTokenOrder) {
  Dispatch dispatch;
  BuildDispatch(kExperts, kWeights, 2, 4, dispatch);
  EXPECT_EQ(dispatch.expert_begin, (std::vector<uint32_t>{0, 2, 4, 4, 6}));
  EXPECT_EQ(dispatch.slots, (std::vector<Slot>{{0, 0.25f}, {1, 0.5f}, {1, 0.5f}, {2, 0.1f}, {0, 0.75f}, {2, 0.9f}}));
  EXPECT_EQ(dispatch.slot_of_choice, (std::vector<uint32_t>{4, 0, 1, 2, 5, 3}));
  EXPECT_EQ(dispatch.Load(0), 2u);
  EXPECT_EQ(dispatch.Load(2), 0u);
}

TEST(BuildDispatch, NoTokensGiveNoSlots) {
  Dispatch dispatch;
  BuildDispatch({}, {}, 2, 3, dispatch);
  EXPECT_TRUE(dispatch.slots.empty());
  EXPECT_EQ(dispatch.expert_begin, (std::vector<uint32_t>{0, 0, 0, 0}));
}

// Five tokens, two choices each, of experts 0 to 2. Expert 1 holds tokens 0 to 4 with weights 0.3 0.6 0.2 0.6 0.5.
Dispatch FiveTokens() {
  const std::vector<uint32_t> experts{1, 0, 1, 2, 0, 1, 2, 1, 1, 0};
  const std::vector<float> weights{0.3f, 0.7f, 0.6f, 0.4f, 0.8f, 0.2f, 0.4f, 0.6f, 0.5f, 0.1f};
  Dispatch dispatch;
  BuildDispatch(experts, weights, 2, 3, dispatch);
  return dispatch;
}

TEST(KeepMostSalient, MovesTheLargestWeightsToTheFrontInOrderOfTokens) {
  Dispatch dispatch = FiveTokens();
  ASSERT_EQ(dispatch.expert_begin, (std::vector<uint32_t>{0, 3, 8, 10}));
  ASSERT_EQ(dispatch.slot_of_choice, (std::vector<uint32_t>{3, 0, 4, 8, 1, 5, 9, 6, 7, 2}));
  KeepMostSalient(dispatch, 1, 3);
  const std::vector<Slot> want{{0, 0.7f}, {2, 0.8f}, {4, 0.1f},              // expert 0, untouched
                               {1, 0.6f}, {3, 0.6f}, {4, 0.5f},              // the three that stay
                               {0, 0.3f}, {2, 0.2f}, {1, 0.4f}, {3, 0.4f}};  // the two that go; expert 2
  EXPECT_EQ(dispatch.slots, want);
  EXPECT_EQ(dispatch.slot_of_choice, (std::vector<uint32_t>{6, 0, 3, 8, 1, 7, 9, 4, 5, 2}));
  EXPECT_EQ(dispatch.expert_begin, (std::vector<uint32_t>{0, 3, 8, 10}));
}

TEST(KeepMostSalient, OfEqualWeightsTheLowerTokenStays) {
  Dispatch dispatch = FiveTokens();
  KeepMostSalient(dispatch, 1, 1);
  EXPECT_EQ(std::vector<Slot>(dispatch.slots.begin() + 3, dispatch.slots.begin() + 8),
            (std::vector<Slot>{{1, 0.6f}, {0, 0.3f}, {2, 0.2f}, {3, 0.6f}, {4, 0.5f}}));
}

TEST(KeepMostSalient, LeavesALoadThatFitsAndHandlesCapacityZero) {
  const Dispatch before = FiveTokens();
  Dispatch dispatch = before;
  KeepMostSalient(dispatch, 1, 5);
  KeepMostSalient(dispatch, 0, 100);
  KeepMostSalient(dispatch, 1, 0);
  EXPECT_EQ(dispatch.slots, before.slots);
  EXPECT_EQ(dispatch.slot_of_choice, before.slot_of_choice);
}

TEST(KeepMostSalient, CanBeRepeatedWithASmallerCapacity) {
  Dispatch twice = FiveTokens(), once = FiveTokens();
  KeepMostSalient(twice, 1, 4);
  KeepMostSalient(twice, 1, 2);
  KeepMostSalient(once, 1, 2);
  EXPECT_EQ(twice.slots, once.slots);
  EXPECT_EQ(twice.slot_of_choice, once.slot_of_choice);
}

}  // namespace
}  // namespace npumoe
