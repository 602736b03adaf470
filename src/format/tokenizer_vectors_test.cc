// SPDX-License-Identifier: Apache-2.0
// The published test vectors of real vocabularies: texts and their ids.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "format/tokenizer.h"

namespace npumoe {
namespace {

struct Vectors {
  const char* vocabulary;
  const char* vectors;  // file name without .inp and .out
  const char* pre;      // override, "" = the file's
  size_t n_texts;
};

void PrintTo(const Vectors& vectors, std::ostream* out) { *out << vectors.vectors << ' ' << vectors.pre; }

std::string Folder() { return NM_SOURCE_DIR "/../shared/data/vocab/"; }

// Texts are joined by a line of their own.
std::vector<std::string> SplitTexts(const std::string& all) {
  const std::string mark = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  size_t pos = 0;
  while (true) {
    const size_t end = all.find(mark, pos);
    if (end == std::string::npos) return texts;  // what follows the last mark is no text
    texts.push_back(all.substr(pos, end - pos));
    pos = end + mark.size();
  }
}

std::vector<std::vector<int32_t>> ParseIds(const std::string& all) {
  std::vector<std::vector<int32_t>> lines(1);
  int32_t id = -1;
  const auto finish = [&] {
    if (id >= 0) lines.back().push_back(id);
    id = -1;
  };
  for (const char c : all) {
    if (c >= '0' && c <= '9') {
      id = (id < 0 ? 0 : id * 10) + (c - '0');
      continue;
    }
    finish();
    if (c == '\n') lines.emplace_back();
  }
  finish();
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

Result<Tokenizer> Load(const std::string& path, std::string_view pre) {
  auto file = GgufFile::Open(path);
  if (!file.ok()) return file.error();
  return Tokenizer::FromGguf(*file, pre);
}

class TokenizerVectors : public testing::TestWithParam<Vectors> {};

TEST_P(TokenizerVectors, GiveThePublishedIds) {
  const std::string vocabulary = Folder() + GetParam().vocabulary;
  if (!std::filesystem::exists(vocabulary)) GTEST_SKIP() << vocabulary << " is not there";
  const auto tokenizer = Load(vocabulary, GetParam().pre);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const auto inputs = ReadFile(Folder() + GetParam().vectors + ".inp");
  const auto outputs = ReadFile(Folder() + GetParam().vectors + ".out");
  ASSERT_TRUE(inputs.ok() && outputs.ok());
  const auto texts = SplitTexts(*inputs);
  const auto ids = ParseIds(*outputs);
  ASSERT_EQ(texts.size(), GetParam().n_texts);
  ASSERT_EQ(ids.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer->Encode(texts[i], {}), ids[i]) << "text " << i << ": " << texts[i];
  }
}

TEST_P(TokenizerVectors, DecodeToTheText) {
  const std::string vocabulary = Folder() + GetParam().vocabulary;
  if (!std::filesystem::exists(vocabulary)) GTEST_SKIP() << vocabulary << " is not there";
  const auto tokenizer = Load(vocabulary, GetParam().pre);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const auto inputs = ReadFile(Folder() + GetParam().vectors + ".inp");
  ASSERT_TRUE(inputs.ok());
  for (const std::string& text : SplitTexts(*inputs)) {
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, {}), false), text);
  }
}

struct SpecialIds {
  const char* vocabulary;
  std::vector<int32_t> prefix, eog;
  const char* marker;
  int32_t marker_id;
};

TEST(TokenizerSpecials, AreThoseOfTheModels) {
  const SpecialIds cases[] = {
      {"qwen3-vocab.gguf", {}, {151643, 151645}, "<|im_start|>", 151644},
      {"ggml-vocab-phi-3.gguf", {1}, {32000, 32007}, "<|system|>", 32006},
      {"ggml-vocab-llama-spm.gguf", {1}, {2}, "</s>", 2},
      {"ggml-vocab-gpt-2.gguf", {}, {50256}, "<|endoftext|>", 50256},
  };
  for (const SpecialIds& expected : cases) {
    const std::string vocabulary = Folder() + expected.vocabulary;
    if (!std::filesystem::exists(vocabulary)) GTEST_SKIP() << vocabulary << " is not there";
    const auto tokenizer = Load(vocabulary, "");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    EXPECT_EQ(tokenizer->Encode("", {.add_special = true}), expected.prefix) << vocabulary;
    EXPECT_EQ(tokenizer->special().eog, expected.eog) << vocabulary;
    EXPECT_EQ(tokenizer->Find(expected.marker), expected.marker_id);
    EXPECT_EQ(tokenizer->Encode(expected.marker, {.parse_special = true}), std::vector<int32_t>{expected.marker_id});
    EXPECT_GT(tokenizer->Encode(expected.marker, {}).size(), 1u) << vocabulary;
  }
}

TEST(TokenizerSpecials, AVocabularyWithoutAPreIsReadWithAWarning) {
  const std::string vocabulary = Folder() + "ggml-vocab-gpt-neox.gguf";
  if (!std::filesystem::exists(vocabulary)) GTEST_SKIP() << vocabulary << " is not there";
  const auto tokenizer = Load(vocabulary, "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->warnings().size(), 1u);
  const auto forced = Load(vocabulary, "gpt-neox");
  ASSERT_TRUE(forced.ok());
  EXPECT_TRUE(forced->warnings().empty());
  // Runs of spaces are added words of that vocabulary: 24 and 6 here.
  EXPECT_EQ(forced->Encode(std::string(30, ' '), {}), (std::vector<int32_t>{50254, 50272}));
  EXPECT_EQ(forced->Decode({50254, 50272}, false), std::string(30, ' '));
}

INSTANTIATE_TEST_SUITE_P(Files, TokenizerVectors,
                         testing::Values(Vectors{"ggml-vocab-gpt-2.gguf", "ggml-vocab-gpt-2.gguf", "", 46},
                                         Vectors{"qwen3-vocab.gguf", "ggml-vocab-qwen2.gguf", "", 46},
                                         Vectors{"qwen3-vocab.gguf", "ggml-vocab-qwen35.gguf", "qwen35", 50},
                                         Vectors{"ggml-vocab-llama-spm.gguf", "ggml-vocab-llama-spm.gguf", "", 46},
                                         Vectors{"ggml-vocab-phi-3.gguf", "ggml-vocab-phi-3.gguf", "", 46}),
                         [](const auto& parameters) {
                           std::string name = parameters.param.vectors;
                           for (char& c : name) {
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace npumoe
