// SPDX-License-Identifier: Apache-2.0
#include "eval/choice_items.h"

#include <gtest/gtest.h>

#include <string>

namespace npumoe {
namespace {

const std::string kTwo =
    "A man sits on a roof. he\n2\nsleeps.\nsings.\nrips up tiles.\nfalls.\r\n"
    "She lifts\n0\nthe bar.\na car.\nher hat.\nnothing.\n\n";

TEST(HellaSwag, SixLinesAnItem) {
  const auto items = ParseHellaSwag(kTwo, "t.txt");
  ASSERT_TRUE(items.ok()) << items.error().message;
  ASSERT_EQ(items->size(), 2u);
  EXPECT_EQ((*items)[0].context, "A man sits on a roof. he");
  EXPECT_EQ((*items)[0].gold, 2u);
  EXPECT_EQ((*items)[0].endings, (std::vector<std::string>{"sleeps.", "sings.", "rips up tiles.", "falls."}));
  EXPECT_EQ((*items)[1].endings[3], "nothing.");
}

TEST(HellaSwag, NamesTheLine) {
  const auto message = [](const std::string& text) { return ParseHellaSwag(text, "t.txt").error().message; };
  EXPECT_EQ(message("context\nx\na\nb\nc\nd\n"), "t.txt: line 2: 'x', wanted the number of the right ending");
  EXPECT_EQ(message("context\n99999999999\na\nb\nc\nd\n"),
            "t.txt: line 2: '99999999999', wanted the number of the right ending");
  EXPECT_EQ(message("context\n4\na\nb\nc\nd\n"), "t.txt: line 1: the right ending is number 4, wanted 0 to 3");
  EXPECT_EQ(message("context\n1\na\n\nc\nd\n"), "t.txt: line 1: ending 1 is empty");
  EXPECT_EQ(message(kTwo + "context\n1\na\nb\n"), "t.txt: line 13: the context is empty");
  EXPECT_EQ(message(kTwo.substr(0, kTwo.size() - 1) + "context\n1\na\nb\n"),
            "t.txt: line 13: the item of it has 2 endings, wanted 4");
  EXPECT_EQ(message("context"), "t.txt: line 1: an item ends after its context");
  EXPECT_EQ(message(" \n"), "t.txt: no items");
  EXPECT_EQ(message(std::string(kMaxLineBytes + 1, 'x')), "t.txt: line 1: 1048577 bytes, limit 1048576");
}

TEST(HellaSwag, EveryTruncationIsAnItemLessOrAnError) {
  for (size_t n = 0; n < kTwo.size(); ++n) {
    const auto items = ParseHellaSwag(std::string_view(kTwo).substr(0, n), "t");
    if (items.ok()) {
      EXPECT_LE(items->size(), 2u) << n;
    } else {
      EXPECT_EQ(items.error().code, Code::kCorruptFile) << n;
    }
  }
}

TEST(BoolQ, BothSpellingsAreTheSameItem) {
  const auto suite = ParseBoolQ(
      "{\"query\": \"Passage: Snow is cold.\\nQuestion: is snow cold?\", \"choices\": [\"no\", \"yes\"], \"gold\": "
      "1}\n",
      "b");
  const auto own =
      ParseBoolQ("{\"passage\": \"Snow is cold.\", \"question\": \"is snow cold\", \"answer\": true}", "b");
  ASSERT_TRUE(suite.ok() && own.ok());
  EXPECT_EQ((*suite)[0].context, "Passage: Snow is cold.\nQuestion: is snow cold?\nAnswer:");
  for (const auto& items : {*suite, *own}) {
    EXPECT_EQ(items[0].context, (*suite)[0].context);
    EXPECT_EQ(items[0].endings, (std::vector<std::string>{"no", "yes"}));
    EXPECT_EQ(items[0].gold, 1u);
  }
}

TEST(Piqa, BothSpellingsAreTheSameItem) {
  const auto suite =
      ParsePiqa("\n{\"choices\": [\"fry it\", \"boil it\"], \"gold\": 1, \"query\": \"Question: eggs\\n\"}", "p");
  const auto own = ParsePiqa("{\"goal\": \"eggs\", \"sol1\": \"fry it\", \"sol2\": \"boil it\", \"label\": 1}", "p");
  ASSERT_TRUE(suite.ok() && own.ok());
  EXPECT_EQ((*suite)[0].context, "Question: eggs\nAnswer:");
  EXPECT_EQ((*own)[0].context, (*suite)[0].context);
  EXPECT_EQ((*own)[0].endings, (*suite)[0].endings);
  EXPECT_EQ((*own)[0].gold, 1u);
}

TEST(JsonLines, NamesTheLine) {
  const std::string good = "{\"query\": \"q\", \"choices\": [\"a\", \"b\"], \"gold\": 0}\n";
  for (const auto& [line, part] :
       {std::pair<std::string, std::string>{"{", "p: line 2: not valid JSON"},
        {"[]", "p: line 2: an array of 0, wanted an object"},
        {"{}", "p: line 2: query: missing"},
        {"{\"query\": \"q\", \"choices\": [\"a\", \"b\"]}", "p: line 2: gold: missing"},
        {"{\"query\": \"q\", \"choices\": [\"a\", \"b\"], \"gold\": -1}", "p: line 2: gold: -1"},
        {"{\"query\": \"q\", \"choices\": [\"a\", \"b\"], \"gold\": 2}", "number 2, wanted 0 to 1"},
        {"{\"query\": \"q\", \"choices\": [\"a\"], \"gold\": 0}", "p: line 2: 1 endings"},
        {"{\"query\": \"q\", \"choices\": [\"a\", \" \"], \"gold\": 0}", "ending 1 is empty"},
        {"{\"query\": \"q\", \"choices\": [\"a\", 1], \"gold\": 0}", "choices: wanted texts"},
        {"{\"query\": \"q\", \"choices\": 7, \"gold\": 0}", "choices: wanted a list"},
        {"{\"query\": \"\xff\", \"choices\": [\"a\", \"b\"], \"gold\": 0}", "not valid JSON"},
        {std::string(100000, '['), "p: line 2: "}}) {
    const auto items = ParsePiqa(good + line + "\n" + good, "p");
    ASSERT_FALSE(items.ok()) << line.substr(0, 100);
    EXPECT_NE(items.error().message.find(part), std::string::npos) << items.error().message;
  }
  EXPECT_EQ(ParsePiqa("", "p").error().message, "p: no items");
}

TEST(PromptOf, ShotsAreTheFilesFirstButNeverTheItemItself) {
  const std::vector<ChoiceItem> items{{"one", {"a", "b"}, 0}, {"two", {"c", "d"}, 1}, {"three", {"e", "f"}, 0}};
  EXPECT_EQ(PromptOf(items, 2, 0), "three");
  EXPECT_EQ(PromptOf(items, 2, 2), "one a\n\ntwo d\n\nthree");
  EXPECT_EQ(PromptOf(items, 0, 2), "two d\n\nthree e\n\none");
  EXPECT_EQ(PromptOf(items, 1, 1), "one a\n\ntwo");
}

}  // namespace
}  // namespace npumoe
