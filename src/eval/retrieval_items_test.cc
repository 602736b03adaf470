// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval_items.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "eval/retrieval_words.h"

namespace npumoe {
namespace {

// Words and punctuation, as a tokenizer might count them.
size_t CountWords(std::string_view text) {
  size_t n = 0;
  for (size_t i = 0; i < text.size(); ++i) n += i == 0 || text[i] == ' ' || text[i] == '\n' || text[i] == '.' ? 1 : 0;
  return n;
}

RetrievalItem Make(std::string_view task, uint64_t seed, uint64_t item, size_t length) {
  auto made = MakeRetrievalItem(task, seed, item, length, CountWords);
  EXPECT_TRUE(made.ok()) << made.error().message;
  return made.ok() ? *made : RetrievalItem{};
}

size_t Length(const RetrievalItem& item) {
  std::string questions;
  for (const std::string& question : item.questions) questions += question + "\n";
  return CountWords(item.text) + CountWords(questions) + item.questions.size() * item.answer_tokens;
}

std::map<std::string, size_t> Words(const std::string& text) {
  std::map<std::string, size_t> counts;
  std::istringstream words(text);
  for (std::string word; words >> word;) ++counts[word];
  return counts;
}

TEST(RetrievalItems, FillTheLengthAndNoMore) {
  for (const RetrievalTask& task : RetrievalTasks()) {
    for (const size_t length : {200, 333, 2000, 20000}) {
      for (uint64_t item = 0; item < 3; ++item) {
        const size_t got = Length(Make(task.name, 5, item, length));
        EXPECT_LE(got, length) << task.name;
        // A unit more would not fit: the longest is one round of 15 made-up words.
        EXPECT_GT(got + 40, length) << task.name;
      }
    }
  }
}

TEST(RetrievalItems, DependOnSeedAndItemAlone) {
  for (const RetrievalTask& task : RetrievalTasks()) {
    EXPECT_EQ(Make(task.name, 1, 7, 500).text, Make(task.name, 1, 7, 500).text);
    EXPECT_NE(Make(task.name, 1, 7, 500).text, Make(task.name, 1, 8, 500).text);
    EXPECT_NE(Make(task.name, 1, 7, 500).text, Make(task.name, 2, 7, 500).text);
  }
  // The same on every machine and in every version: a recorded item.
  const RetrievalItem item = Make("needle-single", 1, 0, 60);
  EXPECT_EQ(item.text + item.questions[0] + " " + item.references[0],
            "The old miller looked around at the end of the road after the long day.\n"
            "The code of piano is 7237.\n"
            "A quiet girl sang softly beside the river after the long day.\n"
            "What is the code of piano? 7237");
}

TEST(RetrievalItems, HoldTheirReferences) {
  for (uint64_t i = 0; i < 20; ++i) {
    const RetrievalItem single = Make("needle-single", 3, i, 300);
    ASSERT_EQ(single.references.size(), 1u);
    EXPECT_EQ(CountFound(single.text, single.references), 1u);
    EXPECT_EQ(Words(single.text)["code"], 1u);

    const RetrievalItem key = Make("needle-multikey", 3, i, 300);
    EXPECT_EQ(Words(key.text)["code"], 8u);
    const std::string noun = key.questions[0].substr(std::string("What is the code of ").size());
    EXPECT_NE(key.text.find("code of " + noun.substr(0, noun.size() - 1) + " is " + key.references[0] + ".\n"),
              std::string::npos);

    const RetrievalItem value = Make("needle-multivalue", 3, i, 300);
    EXPECT_EQ(value.questions.size(), 1u);
    EXPECT_EQ(CountFound(value.text, value.references), 4u);

    const RetrievalItem query = Make("needle-multiquery", 3, i, 300);
    EXPECT_TRUE(query.is_conversation());
    EXPECT_EQ(query.questions.size(), query.references.size());
    EXPECT_EQ(CountFound(query.text, query.references), 4u);
  }
}

TEST(RetrievalItems, VariablesAreSetBeforeTheyAreUsed) {
  for (uint64_t i = 0; i < 20; ++i) {
    const RetrievalItem item = Make("variable-tracking", 3, i, 300);
    ASSERT_EQ(item.references.size(), 5u);
    size_t at = 0;
    for (size_t v = 0; v < 5; ++v) {
      const size_t set = item.text.find(item.references[v] + " = ");
      ASSERT_NE(set, std::string::npos);
      EXPECT_GE(set, at);
      at = set;
      if (v == 0) continue;
      EXPECT_EQ(item.text.find(item.references[v] + " = " + item.references[v - 1]), set);
    }
  }
}

TEST(RetrievalItems, ReferencesAreTheMostFrequentWords) {
  for (const auto& [task, length] :
       {std::pair{"common-words", 120}, {"common-words", 5000}, {"frequent-words", 200}, {"frequent-words", 5000}}) {
    const RetrievalItem item = Make(task, 9, 0, static_cast<size_t>(length));
    auto counts = Words(item.text.substr(item.text.find('\n')));
    size_t fewest = item.text.size();
    for (const std::string& word : item.references) fewest = std::min(fewest, counts[word]);
    for (const auto& [word, n] : counts) {
      const bool is_reference = std::ranges::find(item.references, word) != item.references.end();
      EXPECT_TRUE(is_reference || n < fewest) << task << word;
    }
  }
}

TEST(RetrievalItems, SayTheLeastLength) {
  const auto item = MakeRetrievalItem("needle-multikey", 1, 0, 30, CountWords);
  ASSERT_FALSE(item.ok());
  EXPECT_EQ(item.error().code, Code::kInvalidArgument);
  const size_t at = item.error().message.find("at least ");
  const auto least = static_cast<size_t>(std::stoul(item.error().message.substr(at + 9)));
  EXPECT_TRUE(MakeRetrievalItem("needle-multikey", 1, 0, least, CountWords).ok());
  EXPECT_FALSE(MakeRetrievalItem("needle-multikey", 1, 0, least - 1, CountWords).ok());
  EXPECT_FALSE(MakeRetrievalItem("needle-single", 1, 0, 100, [](std::string_view) { return size_t{0}; }).ok());
}

TEST(RetrievalWords, AreDifferentAndFillerHasNone) {
  const std::set<std::string_view> nouns(Nouns().begin(), Nouns().end());
  EXPECT_EQ(nouns.size(), Nouns().size());
  Random random(1);
  const auto made_up = MadeUpWords(random, 2000);
  EXPECT_EQ(std::set<std::string>(made_up.begin(), made_up.end()).size(), 2000u);
  for (int i = 0; i < 500; ++i) {
    const std::string line = FillerLine(random);
    EXPECT_EQ(line.find_first_of("0123456789=\n"), std::string::npos);
    EXPECT_EQ(line.find("code"), std::string::npos);
    EXPECT_TRUE(std::isupper(static_cast<unsigned char>(line[0])) != 0 && line.ends_with('.')) << line;
  }
}

TEST(CountFound, TakesWholeWordsInAnyCase) {
  EXPECT_EQ(CountFound("It is 1234.", {"1234"}), 1u);
  EXPECT_EQ(CountFound("12345 and 91234", {"1234"}), 0u);
  EXPECT_EQ(CountFound("12345 then 1234", {"1234"}), 1u);
  EXPECT_EQ(CountFound("DALO, fenu", {"dalo", "fenu", "kiri"}), 2u);
  EXPECT_EQ(CountFound("", {"a"}), 0u);
}

}  // namespace
}  // namespace npumoe
