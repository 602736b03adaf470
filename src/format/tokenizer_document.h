// SPDX-License-Identifier: Apache-2.0
// A parsed tokenizer.json. Its two large parts, vocabulary and merges, go to flat tables; the rest is a small document.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "format/json_reader.h"
#include "format/vocabulary.h"

namespace npumoe {

struct TokenizerDocument {
  Json rest;               // without model.vocab and model.merges, where these have the usual form
  bool has_vocab = false;  // model.vocab was an object
  TextTable vocab_texts;   // in the order of the file
  std::vector<uint64_t> vocab_ids;
  bool has_merges = false;  // model.merges was a list
  TextTable merge_texts;    // left and right of each merge in turn

  size_t n_merges() const { return merge_texts.size() / 2; }
};

// Merges may be strings with one space or pairs of strings. kCorruptFile names `subject` and the byte or the field.
Result<TokenizerDocument> ParseTokenizerDocument(std::string_view text, std::string_view subject);

}  // namespace npumoe
