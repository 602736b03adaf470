// SPDX-License-Identifier: Apache-2.0
// A synthetic byte-level BPE vocabulary of any size that encodes any text, for random checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

inline constexpr uint32_t kMinRandomVocab = 300;  // 256 bytes, the control tokens, and room for some merges

struct RandomVocab {
  std::vector<std::string> tokens;  // ids 0 to 255: the bytes in GPT-2's spelling; then merges; last the control tokens
  std::vector<std::string> merges;  // "a b", most preferred first
  int32_t end_of_text = 0, turn_start = 0, turn_end = 0;  // "<|endoftext|>", "<|im_start|>", "<|im_end|>"

  bool IsControl(size_t id) const { return id >= static_cast<size_t>(end_of_text); }
};

// Words over the alphabet in order of length, with and without a leading space, each merged from the one before it.
Result<RandomVocab> MakeRandomVocab(uint32_t vocab_size);

// A ChatML template in Jinja for the vocabulary's control tokens.
std::string_view RandomChatTemplate();

// Contents of a Hugging Face tokenizer.json and tokenizer_config.json.
std::string RandomTokenizerJson(const RandomVocab& vocab);
std::string RandomTokenizerConfigJson(const RandomVocab& vocab);

}  // namespace npumoe
