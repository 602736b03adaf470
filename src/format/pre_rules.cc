// SPDX-License-Identifier: Apache-2.0
// The table behind tokenizer.ggml.pre: split patterns as the tokenizers themselves publish them, names and flags as
// llama.cpp's converter writes them.
#include <array>

#include "format/pretokenizer.h"

namespace npumoe {
namespace {

using Patterns = std::string_view;

#define NM_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

// OpenAI's GPT-2 (encoder.py), without its last alternative: what no pattern matches is a piece anyway.
constexpr Patterns kGpt2[] = {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))"};

// StarCoder's and SmolLM's tokenizer.json: every digit alone, then GPT-2's pattern.
constexpr Patterns kDigitsGpt2[] = {R"(\p{N})", kGpt2[0]};

// Qwen2's and Qwen3's tokenizer.json.
constexpr Patterns kQwen2[] = {NM_CONTRACTIONS
                               R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// Qwen3.5: marks count as letters.
constexpr Patterns kQwen35[] = {
    NM_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// Llama 3's tokenizer.json, which is OpenAI's cl100k.
constexpr Patterns kLlama3[] = {
    NM_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// OpenAI's o200k (tiktoken): words are cut where the case changes.
constexpr Patterns kO200k[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)" NM_CONTRACTIONS
    R"(?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)" NM_CONTRACTIONS
    R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// DeepSeek V3's tokenizer.json.
constexpr Patterns kDeepSeek3[] = {
    R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)"};

// llama.cpp's fallback for files that name no pre-tokenizer.
constexpr Patterns kDefault[] = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2[0], R"(\p{N}+)", "[0-9][0-9][0-9]"};

#undef NM_CONTRACTIONS

// NFC where the model's tokenizer.json has that normalizer. qwen35 has none here: its published vectors keep
// decomposed letters apart.
constexpr auto kRules = std::to_array<PreRule>({
    {.name = "default", .patterns = kDefault},
    {.name = "gpt-2", .patterns = kGpt2},
    {.name = "gpt2", .patterns = kGpt2},
    {.name = "gpt-neox", .patterns = kGpt2, .nfc = true},
    {.name = "gptneox", .patterns = kGpt2, .nfc = true},
    {.name = "olmo", .patterns = kGpt2, .nfc = true},
    {.name = "mpt", .patterns = kGpt2},
    {.name = "starcoder", .patterns = kDigitsGpt2},
    {.name = "refact", .patterns = kDigitsGpt2},
    {.name = "command-r", .patterns = kDigitsGpt2},
    {.name = "smollm", .patterns = kDigitsGpt2},
    {.name = "qwen2", .patterns = kQwen2, .nfc = true},
    {.name = "qwen35", .patterns = kQwen35},
    {.name = "stablelm2", .patterns = kQwen2},
    {.name = "deepseek-r1-qwen", .patterns = kQwen2, .nfc = true},
    {.name = "llama3", .patterns = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .patterns = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama-bpe", .patterns = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "dbrx", .patterns = kLlama3},
    {.name = "smaug-bpe", .patterns = kLlama3},
    {.name = "chatglm-bpe", .patterns = kLlama3},
    {.name = "gpt-4o", .patterns = kO200k},
    {.name = "llama4", .patterns = kO200k, .add_bos = true},
    {.name = "deepseek-v3", .patterns = kDeepSeek3},
});

}  // namespace

const PreRule* FindPreRule(std::string_view name) {
  for (const PreRule& rule : kRules) {
    if (rule.name == name) return &rule;
  }
  return nullptr;
}

std::vector<std::string_view> PreRuleNames() {
  std::vector<std::string_view> names;
  for (const PreRule& rule : kRules) names.push_back(rule.name);
  return names;
}

}  // namespace npumoe
