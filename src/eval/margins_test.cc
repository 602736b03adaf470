// SPDX-License-Identifier: Apache-2.0
#include "eval/margins.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "eval/task_scores.h"

namespace npumoe {
namespace {

TEST(FindTop, IsAheadOfTheNextWhereverThatStands) {
  const std::vector<std::vector<double>> orders{{4, 1, 3.5}, {3.5, 1, 4}, {1, 4, 3.5}, {3.5, 4, 1}, {-3, 3.5, 4}};
  for (const auto& scores : orders) {
    EXPECT_EQ(scores[FindTop(scores).best], 4);
    EXPECT_EQ(FindTop(scores).margin, 0.5);
  }
  const std::vector<float> equals{1, 2, 2};
  EXPECT_EQ(FindTop(equals).best, 1u);
  EXPECT_EQ(FindTop(equals).margin, 0);
  EXPECT_TRUE(std::isinf(FindTop(std::vector<float>{7}).margin));
}

TEST(SummarizeMargins, CountsTheChoicesThatAreAsClose) {
  const std::vector<double> next{0.125, 2, 0.25, 0.5, 9};
  const Margins none = SummarizeMargins({}, next);
  EXPECT_EQ(none.n_changed + none.n_as_close, 0u);
  EXPECT_EQ(none.widest, 0);
  const Margins some = SummarizeMargins({0.5, 0.125, 0.25}, next);
  EXPECT_EQ(some.n_changed, 3u);
  EXPECT_EQ(some.median, 0.25);
  EXPECT_EQ(some.widest, 0.5);
  EXPECT_EQ(some.n_as_close, 3u);
}

ItemRecord Answered(const std::string& answer, std::optional<double> next, std::optional<double> lost) {
  ItemRecord record;
  record.references = {"1"};
  record.answers = {answer};
  record.exact_answers = {"1"};
  record.exact_margin = next;
  record.lost_margin = lost;
  return record;
}

TEST(AnswerMargins, OfRetrievalAreThoseOfChangedAnswers) {
  // Other tokens of the same text change no answer.
  std::vector<ItemRecord> records{Answered("2", 0.5, 0.75), Answered("1", 0.625, 0.625), Answered("1", 3, {})};
  const auto margins = AnswerMargins(records);
  ASSERT_TRUE(margins);
  EXPECT_EQ(margins->n_changed, 1u);
  EXPECT_EQ(margins->widest, 0.75);
  EXPECT_EQ(margins->n_as_close, 2u);
  // With an item of an older program's log, how many changed would be a guess.
  records.push_back(Answered("1", {}, {}));
  EXPECT_FALSE(AnswerMargins(records));
}

TEST(AnswerMargins, OfChoicesAreByCharacters) {
  ItemRecord record;
  record.n_tokens = {1, 1, 1};
  record.n_characters = {4, 2, 1};
  record.exact_log_probs = {-4, -3, -1.25};  // -1, -1.5, -1.25 a character
  record.log_probs = {-8, -2, -1.25};        // -2, -1, -1.25
  const auto margins = AnswerMargins(std::vector{record});
  ASSERT_TRUE(margins);
  EXPECT_EQ(margins->n_changed, 1u);
  EXPECT_EQ(margins->widest, 0.5);  // of the exact run's first ending over its second
  EXPECT_EQ(margins->n_as_close, 1u);
  record.exact_log_probs.clear();
  EXPECT_FALSE(AnswerMargins(std::vector{record}));
}

}  // namespace
}  // namespace npumoe
