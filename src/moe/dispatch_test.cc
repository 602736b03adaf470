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

TEST(Dispatch, ScatterOfPackIsTheWeightedInput) {
  const std::vector<float> x{1, 2, 3, 4, 5, 6};  // [3 tokens, dim 2]
  Dispatch dispatch;
  BuildDispatch(kExperts, kWeights, 2, 4, dispatch);
  std::vector<float> packed(12);
  Pack(x, 2, dispatch.slots, packed);
  EXPECT_EQ(packed, (std::vector<float>{1, 2, 3, 4, 3, 4, 5, 6, 1, 2, 5, 6}));
  std::vector<float> y(6, 100.0f);
  for (size_t token = 0; token < 3; ++token) {
    ScatterAdd(packed, 2, dispatch, 2, token, std::span(y).subspan(token * 2, 2));
  }
  EXPECT_EQ(y, (std::vector<float>{101, 102, 103, 104, 105, 106}));  // weights of each token sum to 1
}

}  // namespace
}  // namespace npumoe
