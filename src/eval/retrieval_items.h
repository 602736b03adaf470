// SPDX-License-Identifier: Apache-2.0
// Texts of a given length in which something must be found again, after the kinds of tasks in RULER (Hsieh et al.,
// 2024); wording, words and filler are our own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

struct RetrievalItem {
  std::string text;                    // what is read before the first question
  std::vector<std::string> questions;  // asked one after another, each after the answers to those before; >= 1
  // What answers must hold: with several questions one each, with one question all of them.
  std::vector<std::string> references;
  uint32_t answer_tokens = 0;  // most that are drawn for one question

  bool is_conversation() const { return questions.size() > 1; }
};

struct RetrievalTask {
  std::string_view name, purpose;
};
std::vector<RetrievalTask> RetrievalTasks();

using CountTokensFn = std::function<size_t(std::string_view text)>;

// Item number `item` of a task: text, questions and room for all answers together take at most `length_tokens`, and as
// many as whole lines of filler allow. Deterministic. kInvalidArgument says the least length when that is too short.
Result<RetrievalItem> MakeRetrievalItem(std::string_view task, uint64_t seed, uint64_t item, size_t length_tokens,
                                        const CountTokensFn& count_tokens);

// How many of `references` stand in `answer` as whole words.
uint32_t CountFound(std::string_view answer, const std::vector<std::string>& references);

}  // namespace npumoe
