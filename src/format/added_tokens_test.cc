// SPDX-License-Identifier: Apache-2.0
#include "format/added_tokens.h"

#include <gtest/gtest.h>

#include <tuple>

namespace npumoe {
namespace {

using Found = std::tuple<size_t, size_t, int32_t>;  // begin, end, id

std::vector<Found> FindAll(const AddedTokens& tokens, std::string_view text, bool parse_control = true) {
  std::vector<Found> out;
  auto match = tokens.FindNext(text, 0, parse_control);
  while (match) {
    out.emplace_back(match->begin, match->end, match->id);
    match = tokens.FindNext(text, match->end, parse_control);
  }
  return out;
}

AddedTokens Make(std::initializer_list<AddedToken> list) {
  AddedTokens tokens;
  for (const AddedToken& token : list) EXPECT_TRUE(tokens.Add(token, "test").ok());
  return tokens;
}

AddedToken Token(std::string text, int32_t id) {
  AddedToken token;
  token.text = std::move(text);
  token.id = id;
  return token;
}

TEST(AddedTokens, AreFoundLeftmostAndLongest) {
  const AddedTokens tokens = Make({Token("ab", 1), Token("abcd", 2), Token("bc", 3)});
  EXPECT_EQ(FindAll(tokens, "xabcabcd"), (std::vector<Found>{{1, 3, 1}, {4, 8, 2}}));
  EXPECT_EQ(FindAll(tokens, "bcab"), (std::vector<Found>{{0, 2, 3}, {2, 4, 1}}));
  EXPECT_EQ(FindAll(tokens, "a"), std::vector<Found>{});
  EXPECT_EQ(FindAll(AddedTokens(), "ab"), std::vector<Found>{});
}

TEST(AddedTokens, ControlTokensAreTextUnlessAskedFor) {
  AddedToken control = Token("<e>", 1);
  control.is_control = true;
  const AddedTokens tokens = Make({control, Token("<e", 2)});
  EXPECT_EQ(FindAll(tokens, "a<e>", true), (std::vector<Found>{{1, 4, 1}}));
  EXPECT_EQ(FindAll(tokens, "a<e>", false), (std::vector<Found>{{1, 3, 2}}));
}

TEST(AddedTokens, SwallowWhitespaceWhereTheyStrip) {
  AddedToken left = Token("<l>", 1), right = Token("<r>", 2);
  left.lstrip = true;
  right.rstrip = true;
  const AddedTokens tokens = Make({left, right});
  EXPECT_EQ(FindAll(tokens, "a \u3000\n<l> b"), (std::vector<Found>{{1, 9, 1}}));
  EXPECT_EQ(FindAll(tokens, "a <r> \n\u00A0b"), (std::vector<Found>{{2, 9, 2}}));
  EXPECT_EQ(FindAll(tokens, "<r>  <l>"), (std::vector<Found>{{0, 5, 2}, {5, 8, 1}}));
}

TEST(AddedTokens, SingleWordsDoNotMatchInsideWords) {
  AddedToken word = Token("cat", 1);
  word.single_word = true;
  const AddedTokens tokens = Make({word});
  EXPECT_EQ(FindAll(tokens, "cat, écat cats _cat cat"), (std::vector<Found>{{0, 3, 1}, {21, 24, 1}}));
}

TEST(AddedTokens, RefuseEmptyAndHugeTexts) {
  AddedTokens tokens;
  EXPECT_EQ(tokens.Add(Token("", 4), "t").error().message, "t: added token 4 has no text");
  EXPECT_EQ(tokens.Add(Token(std::string(257, 'a'), 5), "t").error().message,
            "t: added token 5 has 257 bytes, at most 256 are supported");
  EXPECT_TRUE(tokens.Add(Token(std::string(256, 'a'), 5), "t").ok());
}

}  // namespace
}  // namespace npumoe
