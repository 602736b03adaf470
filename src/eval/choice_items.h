// SPDX-License-Identifier: Apache-2.0
// Files of multiple-choice items: HellaSwag as lines, BoolQ and PIQA as JSONL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

inline constexpr size_t kMaxEndings = 26;                 // of an item
inline constexpr size_t kMaxLineBytes = size_t{1} << 20;  // of an item's file; the longest BoolQ line has 5 KiB

struct ChoiceItem {
  std::string context;               // "Question: ...\nAnswer:"; no blank at its end
  std::vector<std::string> endings;  // each is joined to the context by one space
  uint32_t gold = 0;                 // < endings.size()
};

// Six lines an item: context, number of the right ending from 0, four endings; the text that llama-perplexity
// --hellaswag reads. Blank lines at the end are ignored. kCorruptFile names the line.
Result<std::vector<ChoiceItem>> ParseHellaSwag(std::string_view text, std::string_view name);

// An object a line: {"query", "choices", "gold"}, or the data set's own {"passage", "question", "answer"}; endings are
// "no" and "yes". Blank lines are ignored.
Result<std::vector<ChoiceItem>> ParseBoolQ(std::string_view text, std::string_view name);

// An object a line: {"query", "choices", "gold"}, or {"goal", "sol1", "sol2", "label"}.
Result<std::vector<ChoiceItem>> ParsePiqa(std::string_view text, std::string_view name);

// The item's context behind `n_shots` solved items and blank lines: the file's first ones, of which the item itself is
// left out and replaced by the next. n_shots must be below the number of items.
std::string PromptOf(const std::vector<ChoiceItem>& items, size_t item, size_t n_shots);

}  // namespace npumoe
