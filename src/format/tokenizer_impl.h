// SPDX-License-Identifier: Apache-2.0
// What a loaded tokenizer consists of; shared by the loaders (GGUF, tokenizer.json) and by Encode and Decode.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/added_tokens.h"
#include "format/bpe_model.h"
#include "format/pretokenizer.h"
#include "format/text_normalizer.h"
#include "format/tokenizer.h"
#include "npumoe/result.h"

namespace npumoe {

struct TokenizerData {
  Vocabulary vocabulary;
  TextTable pieces;  // bytes of each token as they appear in text

  AddedTokens added;             // found before normalization
  AddedTokens added_normalized;  // found after it
  TextNormalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;

  std::vector<int32_t> prefix_ids, suffix_ids;  // what add_special puts around the text
  bool strips_leading_space = false;            // Decode drops the space that the normalizer put first
  SpecialTokens special;
  std::string chat_template;
  std::string description;
  std::vector<std::string> warnings;
};

// Fills special.eog: eos, the ids that are there already, and control tokens that published models end their answers
// with, known by their text. Ascending, without repetitions.
void FinishEog(TokenizerData* data);

// The two loaders.
Status LoadGgufTokenizer(const GgufMetadata& metadata, std::string_view name, std::string_view pre_override,
                         TokenizerData* data);
Status LoadJsonTokenizer(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                         std::string_view generation_config_json, std::string_view name, TokenizerData* data);

// Fills data->pieces from the vocabulary.
void MakePieces(bool byte_level, bool byte_fallback, TokenizerData* data);

}  // namespace npumoe
