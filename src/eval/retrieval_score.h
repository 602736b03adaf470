// SPDX-License-Identifier: Apache-2.0
// Answers of a model to the questions of a retrieval item.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "eval/retrieval_items.h"
#include "npumoe/engine.h"

namespace npumoe {

// Reads the item from an empty session and draws the likeliest token until a line ends (one that says something), an
// end token, or the room is used up. An answer per question; questions after the first are read behind the answers so
// far. `progress` as in Session::Append.
Result<std::vector<std::string>> AnswerItem(const Engine& engine, Session& session, const RetrievalItem& item,
                                            const ProgressFn& progress);

}  // namespace npumoe
