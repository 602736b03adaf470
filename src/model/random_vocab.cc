// SPDX-License-Identifier: Apache-2.0
#include "model/random_vocab.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "model/config.h"

namespace npumoe {
namespace {

constexpr std::string_view kAlphabet = "etaoinshrdlcumwfgypbvkjxqz";  // by frequency in English
constexpr size_t kControlTokens = 3;

std::string Utf8(uint32_t code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3f))};
}

// GPT-2 spells printable bytes as themselves and the others, in order, as the code points from 256 on.
std::vector<std::string> ByteSpellings() {
  std::vector<std::string> out;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    out.push_back(Utf8(printable ? byte : next++));
  }
  return out;
}

// The pattern that Qwen2's tokenizer.json splits text with before BPE.
constexpr std::string_view kSplitPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

Result<RandomVocab> MakeRandomVocab(uint32_t vocab_size) {
  if (vocab_size < kMinRandomVocab || vocab_size > kMaxVocab) {
    return MakeError(Code::kInvalidArgument, "random vocabulary: {} tokens, wanted {} to {}", vocab_size,
                     kMinRandomVocab, kMaxVocab);
  }
  RandomVocab vocab;
  vocab.tokens = ByteSpellings();
  vocab.tokens.reserve(vocab_size);
  const std::string space = vocab.tokens[' '];
  const size_t n_text = vocab_size - kControlTokens;
  const auto add = [&](const std::string& left, char last) {
    if (vocab.tokens.size() >= n_text) return;
    vocab.merges.push_back(left + ' ' + last);
    vocab.tokens.push_back(left + last);
  };
  std::vector<std::string> stems{""};  // all words of the previous length
  while (vocab.tokens.size() < n_text) {
    std::vector<std::string> words;
    for (const std::string& stem : stems) {
      if (vocab.tokens.size() >= n_text) break;
      for (const char letter : kAlphabet) {
        if (!stem.empty()) add(stem, letter);
        add(space + stem, letter);
        words.push_back(stem + letter);
      }
    }
    stems = std::move(words);
  }
  vocab.end_of_text = static_cast<int32_t>(n_text);
  vocab.turn_start = vocab.end_of_text + 1;
  vocab.turn_end = vocab.end_of_text + 2;
  for (const char* control : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) vocab.tokens.push_back(control);
  return vocab;
}

std::string_view RandomChatTemplate() {
  return "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
         "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
}

std::string RandomTokenizerJson(const RandomVocab& vocab) {
  using Json = nlohmann::ordered_json;
  Json added = Json::array();
  Json::object_t words;
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    if (!vocab.IsControl(id)) {
      // Appended without nlohmann's search for a duplicate key, which would take quadratic time.
      words.Json::object_t::Container::emplace_back(vocab.tokens[id], id);
      continue;
    }
    added.push_back({{"id", id},
                     {"content", vocab.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", kSplitPattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  Json model = {{"type", "BPE"},           {"dropout", nullptr},     {"unk_token", nullptr},
                {"fuse_unk", false},       {"byte_fallback", false}, {"continuing_subword_prefix", ""},
                {"end_of_word_suffix", ""}};
  model["vocab"] = Json(std::move(words));
  model["merges"] = vocab.merges;
  const Json document = {{"version", "1.0"},
                         {"truncation", nullptr},
                         {"padding", nullptr},
                         {"added_tokens", added},
                         {"normalizer", {{"type", "NFC"}}},
                         {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
                         {"post_processor", byte_level},
                         {"decoder", byte_level},
                         {"model", std::move(model)}};
  return document.dump();
}

std::string RandomTokenizerConfigJson(const RandomVocab& vocab) {
  const auto text = [&](int32_t id) { return vocab.tokens[static_cast<size_t>(id)]; };
  const nlohmann::ordered_json document = {{"tokenizer_class", "Qwen2Tokenizer"},
                                           {"add_bos_token", false},
                                           {"bos_token", nullptr},
                                           {"eos_token", text(vocab.turn_end)},
                                           {"pad_token", text(vocab.end_of_text)},
                                           {"chat_template", RandomChatTemplate()}};
  return document.dump(2);
}

}  // namespace npumoe
