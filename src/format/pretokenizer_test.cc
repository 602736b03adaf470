// SPDX-License-Identifier: Apache-2.0
#include "format/pretokenizer.h"

#include <gtest/gtest.h>

namespace npumoe {
namespace {

using Texts = std::vector<std::string>;

Texts Pieces(const PreTokenizer& pre_tokenizer, std::string_view text, bool is_first = true) {
  SplitScratch scratch;
  pre_tokenizer.Split(text, is_first, &scratch);
  Texts out;
  for (const TextRange& piece : scratch.pieces)
    out.emplace_back(scratch.text.substr(piece.begin, piece.end - piece.begin));
  return out;
}

SplitStep RegexStep(std::string_view pattern, SplitBehavior behavior = SplitBehavior::kIsolated, bool invert = false) {
  SplitStep step;
  step.regex = std::move(Regex::Compile(pattern, "test")).value();
  step.behavior = behavior;
  step.invert = invert;
  return step;
}

Texts SplitWith(SplitStep step, std::string_view text, bool is_first = true) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.Add(std::move(step));
  return Pieces(pre_tokenizer, text, is_first);
}

Texts SplitByRule(std::string_view name, std::string_view text) {
  PreTokenizer pre_tokenizer;
  for (const std::string_view pattern : FindPreRule(name)->patterns) pre_tokenizer.Add(RegexStep(pattern));
  return Pieces(pre_tokenizer, text);
}

// The examples of the Hugging Face documentation of SplitDelimiterBehavior.
TEST(PreTokenizer, JoinsMatchesAsTheBehaviorSays) {
  const std::string text = "the-final--countdown";
  EXPECT_EQ(SplitWith(RegexStep("-", SplitBehavior::kRemoved), text), (Texts{"the", "final", "countdown"}));
  EXPECT_EQ(SplitWith(RegexStep("-", SplitBehavior::kIsolated), text),
            (Texts{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(SplitWith(RegexStep("-", SplitBehavior::kMergedWithPrevious), text),
            (Texts{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(SplitWith(RegexStep("-", SplitBehavior::kMergedWithNext), text),
            (Texts{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(SplitWith(RegexStep("-", SplitBehavior::kContiguous), text),
            (Texts{"the", "-", "final", "--", "countdown"}));
}

TEST(PreTokenizer, InvertsMatches) {
  EXPECT_EQ(SplitWith(RegexStep("[a-z]+", SplitBehavior::kRemoved, true), "ab1 cd"), (Texts{"ab", "cd"}));
}

TEST(PreTokenizer, KeepsMalformedBytesApart) {
  EXPECT_EQ(SplitWith(RegexStep("a+"),
                      "aa\xFF"
                      "a\xC3"),
            (Texts{"aa", "\xFF", "a", "\xC3"}));
  EXPECT_EQ(SplitWith(RegexStep("a"), ""), Texts{});
}

TEST(PreTokenizer, CutsDigits) {
  SplitStep step;
  step.kind = SplitStep::Kind::kDigits;
  EXPECT_EQ(SplitWith(std::move(step), "a12½b3"), (Texts{"a", "12½", "b", "3"}));
  step = {};
  step.kind = SplitStep::Kind::kDigits;
  step.individual_digits = true;
  EXPECT_EQ(SplitWith(std::move(step), "a12b"), (Texts{"a", "1", "2", "b"}));
}

TEST(PreTokenizer, MarksSpaces) {
  const auto metaspace = [](PrependScheme prepend, bool split) {
    SplitStep step;
    step.kind = SplitStep::Kind::kMetaspace;
    step.replacement = "▁";
    step.prepend = prepend;
    step.split = split;
    return step;
  };
  EXPECT_EQ(SplitWith(metaspace(PrependScheme::kAlways, true), "a  b c"), (Texts{"▁a", "▁", "▁b", "▁c"}));
  EXPECT_EQ(SplitWith(metaspace(PrependScheme::kAlways, true), " a"), Texts{"▁a"});
  EXPECT_EQ(SplitWith(metaspace(PrependScheme::kFirst, false), "a b", true), Texts{"▁a▁b"});
  EXPECT_EQ(SplitWith(metaspace(PrependScheme::kFirst, false), "a b", false), Texts{"a▁b"});
  EXPECT_EQ(SplitWith(metaspace(PrependScheme::kNever, false), "a b"), Texts{"a▁b"});
}

TEST(PreTokenizer, PutsASpaceBeforeEveryPieceThatHasNone) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.Add(RegexStep("[a-z]+"));
  SplitStep step;
  step.kind = SplitStep::Kind::kPrefixSpace;
  pre_tokenizer.Add(std::move(step));
  EXPECT_EQ(Pieces(pre_tokenizer, "a b"), (Texts{" a", " ", " b"}));
}

TEST(PreRules, SplitTheSameTextInTheirOwnWays) {
  const std::string text = "I'Ll don't 1234 HTTPServer\n\n  x=é\u0301 ...\t";
  EXPECT_EQ(SplitByRule("gpt-2", text), (Texts{"I", "'", "Ll", " don", "'t", " 1234", " HTTPServer", "\n\n ", " x", "=",
                                               "é", "\u0301", " ...", "\t"}));
  EXPECT_EQ(SplitByRule("qwen2", text), (Texts{"I", "'Ll", " don", "'t", " ", "1", "2", "3", "4", " HTTPServer", "\n\n",
                                               " ", " x", "=é", "\u0301", " ...", "\t"}));
  EXPECT_EQ(SplitByRule("qwen35", text), (Texts{"I", "'Ll", " don", "'t", " ", "1", "2", "3", "4", " HTTPServer",
                                                "\n\n", " ", " x", "=é\u0301", " ...", "\t"}));
  EXPECT_EQ(SplitByRule("llama-bpe", text), (Texts{"I", "'Ll", " don", "'t", " ", "123", "4", " HTTPServer", "\n\n",
                                                   " ", " x", "=é", "\u0301", " ...", "\t"}));
  EXPECT_EQ(SplitByRule("gpt-4o", text),
            (Texts{"I'Ll", " don't", " ", "123", "4", " HTTPServer", "\n\n", " ", " x", "=é\u0301", " ...", "\t"}));
  EXPECT_EQ(SplitByRule("gpt-4o", "HTTPserver camelCase"), (Texts{"HTTPserver", " camel", "Case"}));
  EXPECT_EQ(SplitByRule("smollm", "a 12 b"), (Texts{"a", " ", "1", "2", " b"}));
  EXPECT_EQ(SplitByRule("default", "a+b 1234!"), (Texts{"a", "+", "b", " ", "123", "4", "!"}));
  EXPECT_EQ(SplitByRule("deepseek-v3", "ab中文 1234!x"), (Texts{"ab", "中文", " ", "123", "4", "!x"}));
}

TEST(PreRules, AreFoundByName) {
  EXPECT_EQ(FindPreRule("no-such"), nullptr);
  for (const std::string_view name : PreRuleNames()) EXPECT_EQ(FindPreRule(name)->name, name);
  EXPECT_TRUE(FindPreRule("qwen2")->nfc);
  EXPECT_FALSE(FindPreRule("gpt-2")->nfc);
  EXPECT_TRUE(FindPreRule("llama-bpe")->ignore_merges);
}

}  // namespace
}  // namespace npumoe
