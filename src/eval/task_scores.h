// SPDX-License-Identifier: Apache-2.0
// From finished items to scores.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "eval/item_record.h"
#include "npumoe/eval.h"

namespace npumoe {

bool HasExact(const ItemRecord& record);  // whether the exact run answered it too

// `records` is not empty, of one kind, and all or none have the exact run.
std::vector<TaskScore> ChoiceScores(std::span<const ItemRecord> records);
std::vector<TaskScore> RetrievalScores(std::span<const ItemRecord> records);
// Items that the exact run answers the same; absent without one.
std::optional<Share> SameAnswers(std::span<const ItemRecord> records);
// How narrow the exact run's answers were; absent without one, or where the margin of an item is not known.
std::optional<Margins> AnswerMargins(std::span<const ItemRecord> records);

}  // namespace npumoe
