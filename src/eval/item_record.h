// SPDX-License-Identifier: Apache-2.0
// What is kept of a finished item: enough for every score, and a line of a log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

struct ItemRecord {
  uint64_t item = 0;  // number in the task's order, from 0
  // Multiple choice, one entry an ending; exact_log_probs are of the exact run, if there was one.
  uint32_t gold = 0;
  std::vector<double> log_probs, exact_log_probs;  // sums over the ending's tokens, nats
  std::vector<uint32_t> n_tokens, n_characters;
  bool is_cut = false;
  // Retrieval.
  std::vector<std::string> references, answers;
  std::vector<std::string> exact_answers;
  uint32_t n_found = 0, n_exact_found = 0;  // of the references
  // Of the exact run, nats: the smallest margin of a drawn token to the next likeliest; and where the runs first draw
  // different tokens, what its own was ahead of the other's by. Absent in logs of older programs.
  std::optional<double> exact_margin, lost_margin;
  // Expert rows of the item's prompts on an NPU.
  uint64_t expert_rows = 0, rows_dropped = 0, rows_rerouted = 0;

  bool is_choice() const { return references.empty(); }
};

// One line without its newline. Bytes that are not UTF-8 become U+FFFD.
std::string ToJsonLine(const ItemRecord& record);
// `name` is the subject of messages: file and line.
Result<ItemRecord> ParseItemRecord(std::string_view line, std::string_view name);

}  // namespace npumoe
