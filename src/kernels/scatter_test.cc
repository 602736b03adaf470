// SPDX-License-Identifier: Apache-2.0
#include "kernels/scatter.h"

#include <gtest/gtest.h>

#include <bit>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "kernels/target_test.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

class Scattering : public EveryTarget {};
NM_FOR_EVERY_TARGET(Scattering);

TEST_P(Scattering, SumsHalvesRowsAndNothingOfAHandWorkedCase) {
  // Two tokens, two choices, dim 2. Expert 0 holds slots 0 and 1 as halves; expert 1 dropped slot 2 and computed
  // slot 3 on the CPU. Token 0 chose (1, 0), token 1 chose (0, 1).
  const ExpertOutput experts[] = {{2, 0}, {0, 1}};
  const uint32_t expert_begin[] = {0, 2, 4}, slot_of_choice[] = {2, 0, 1, 3};
  const float weights[] = {0.5f, 0.25f, 0.75f, 2.0f};
  const float nan = std::bit_cast<float>(0x7fc00000u);
  // What must not be read is NaN.
  const uint16_t halves[] = {F32ToF16(1), F32ToF16(3), 0x7e00, F32ToF16(2), F32ToF16(4), 0x7e00,
                             0x7e00,      0x7e00,      0x7e00, 0x7e00,      0x7e00,      0x7e00};
  const float rows[] = {nan, nan, nan, nan, nan, nan, 10, 20};
  float y[] = {100, 200, 300, 400};
  ThreadPool pool(1);
  Scatter(pool).Add({experts, expert_begin, slot_of_choice, weights, 2, halves, 3, 4.0f, {rows, 4, 2, 2}},
                    {y, 2, 2, 2});
  EXPECT_EQ(y[0], 100 + 0.25f * 4 * 1);
  EXPECT_EQ(y[1], 200 + 0.25f * 4 * 3);
  EXPECT_EQ(y[2], 300 + 0.75f * 4 * 2 + 2.0f * 10);
  EXPECT_EQ(y[3], 400 + 0.75f * 4 * 4 + 2.0f * 20);
}

struct Case {
  Case(size_t n_tokens, size_t choices_per_token, size_t n_experts, size_t channels, Random& random)
      : dim(channels), top_k(choices_per_token) {
    std::vector<std::vector<uint32_t>> choices(n_experts);
    std::vector<uint32_t> ids(n_experts);
    std::iota(ids.begin(), ids.end(), 0u);
    for (size_t token = 0; token < n_tokens; ++token) {
      for (size_t j = 0; j < top_k; ++j) {
        std::swap(ids[j], ids[j + random.Below(n_experts - j)]);
        choices[ids[j]].push_back(static_cast<uint32_t>(token * top_k + j));
        weights.push_back(static_cast<float>(random.Gaussian()));
      }
    }
    slot_of_choice.resize(n_tokens * top_k);
    for (size_t expert = 0; expert < n_experts; ++expert) {
      expert_begin.push_back(n_slots);
      for (const uint32_t choice : choices[expert]) slot_of_choice[choice] = n_slots++;
      ExpertOutput output;
      const auto load = static_cast<uint32_t>(choices[expert].size());
      // Everything as halves, nothing, or a mixture.
      output.n_halves = expert % 3 == 0 ? load : expert % 3 == 1 ? 0 : static_cast<uint32_t>(random.Below(load + 1));
      output.n_dropped = expert % 2 == 0 ? 0 : static_cast<uint32_t>(random.Below(load - output.n_halves + 1));
      experts.push_back(output);
    }
    expert_begin.push_back(n_slots);
    halves.resize(n_slots * (dim + 5));
    for (uint16_t& half : halves) half = F32ToF16(static_cast<float>(random.Gaussian()));
    rows.resize(n_slots * dim);
    for (float& value : rows) value = static_cast<float>(random.Gaussian());
    // What is added at the end: nothing, rows as they are, rows with scales.
    if (random.Below(3) > 0) {
      whole.resize(n_tokens * dim);
      for (float& value : whole) value = static_cast<float>(random.Gaussian());
      scales.resize(random.Below(2) * n_tokens);
      for (float& scale : scales) scale = static_cast<float>(random.Gaussian());
    }
    y.resize(n_tokens * (dim + 3));
    for (float& value : y) value = static_cast<float>(random.Gaussian());
  }

  std::vector<float> Run(size_t n_threads) {
    std::vector<float> out = y;
    ThreadPool pool(n_threads);
    Scatter(pool).Add(Job(), {out.data(), slot_of_choice.size() / top_k, dim, dim + 3});
    return out;
  }

  ScatterJob Job() const {
    return {experts, expert_begin, slot_of_choice,
            weights, top_k,        halves.data(),
            dim + 5, kScale,       {rows.data(), n_slots, dim, dim},
            Whole(), scales};
  }

  ConstMatView Whole() const {
    return whole.empty() ? ConstMatView() : ConstMatView(whole.data(), whole.size() / dim, dim, dim);
  }

  // One choice after the other, one value after the other.
  std::vector<float> Plain() const {
    std::vector<float> out = y;
    for (size_t choice = 0; choice < slot_of_choice.size(); ++choice) {
      const uint32_t slot = slot_of_choice[choice];
      size_t expert = 0;
      while (expert_begin[expert + 1] <= slot) ++expert;
      const uint32_t place = slot - expert_begin[expert];
      const ExpertOutput& output = experts[expert];
      if (place >= output.n_halves && place < output.n_halves + output.n_dropped) continue;
      for (size_t i = 0; i < dim; ++i) {
        const float value =
            place < output.n_halves ? F16ToF32(halves[slot * (dim + 5) + i]) * kScale : rows[slot * dim + i];
        const float product = weights[choice] * value;
        out[choice / top_k * (dim + 3) + i] += product;
      }
    }
    for (size_t i = 0; i < whole.size(); ++i) {
      const float product = scales.empty() ? whole[i] : scales[i / dim] * whole[i];
      out[i / dim * (dim + 3) + i % dim] += product;
    }
    return out;
  }

  static constexpr float kScale = 8.0f;
  size_t dim, top_k;
  uint32_t n_slots = 0;
  std::vector<ExpertOutput> experts;
  std::vector<uint16_t> halves;
  std::vector<uint32_t> expert_begin, slot_of_choice;
  std::vector<float> weights, rows, whole, scales, y;
};

TEST_P(Scattering, MatchesPlainSumsToTheBitAtEveryTail) {
  Random random(1);
  for (size_t dim = 1; dim <= 150; dim += dim < 35 ? 1 : 8) {
    for (const size_t n_tokens : {1, 2, 9, 40}) {
      Case c(n_tokens, 1 + random.Below(5), 6 + random.Below(4), dim, random);
      ASSERT_EQ(c.Run(1), c.Plain()) << n_tokens << " tokens, dim " << dim;
    }
  }
}

TEST_P(Scattering, DoesNotDependOnThreadsOrOtherTokens) {
  Random random(2);
  Case c(300, 4, 16, 130, random);
  const std::vector<float> one = c.Run(1);
  EXPECT_EQ(one, c.Plain());
  EXPECT_EQ(c.Run(3), one);
}

TEST_P(Scattering, WithoutExpertsAllAreRowsAndWithoutChoicesOnlyTheWholeIsAdded) {
  Random random(4);
  Case c(20, 3, 8, 70, random);
  for (ExpertOutput& output : c.experts) output = {};
  const std::vector<float> want = c.Plain();
  c.experts.clear();
  EXPECT_EQ(c.Run(2), want);
  std::vector<float> y = {1, 2, 3, 4, 5, 6};
  const float whole[] = {10, 20, 30, 40, 50, 60};
  ThreadPool pool(2);
  Scatter(pool).Add({.whole = ConstMatView(whole, 2, 3, 3)}, {y.data(), 2, 3, 3});
  EXPECT_EQ(y, (std::vector<float>{11, 22, 33, 44, 55, 66}));
}

TEST_P(Scattering, NoTokensAndManyExpertsAreFine) {
  Random random(3);
  Case none(0, 2, 4, 16, random), many(3, 8, 512, 24, random);
  EXPECT_TRUE(none.Run(2).empty());
  EXPECT_EQ(many.Run(2), many.Plain());
}

}  // namespace
}  // namespace npumoe
