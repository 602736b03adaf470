// SPDX-License-Identifier: Apache-2.0
// Answers of a model to the questions of a retrieval item.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/retrieval_items.h"
#include "npumoe/engine.h"

namespace npumoe {

struct ItemAnswers {
  std::vector<std::string> texts;  // one a question
  std::vector<int32_t> tokens;     // all that were drawn, the one that ended an answer too
  double margin = 0;               // nats: the smallest that a drawn token is ahead of the next likeliest by
  // Nats that the first token drawn otherwise than by the other run is ahead of that run's by.
  std::optional<double> lost_margin;
};

// Reads the item from an empty session and draws the likeliest token until a line ends (one that says something), an
// end token, or the room is used up. An answer per question; questions after the first are read behind the answers so
// far. `other`: what another run drew for the item, or empty. `progress` as in Session::Append.
Result<ItemAnswers> AnswerItem(const Engine& engine, Session& session, const RetrievalItem& item,
                               std::span<const int32_t> other, const ProgressFn& progress);

}  // namespace npumoe
