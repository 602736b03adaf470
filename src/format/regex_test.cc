// SPDX-License-Identifier: Apache-2.0
#include "format/regex.h"

#include <gtest/gtest.h>

namespace npumoe {
namespace {

std::vector<std::string> Matches(std::string_view pattern, std::string_view text) {
  const auto regex = Regex::Compile(pattern, "test");
  if (!regex.ok()) return {regex.error().message};
  RegexScratch scratch;
  std::vector<TextRange> ranges;
  regex->FindAll(text, &scratch, &ranges);
  std::vector<std::string> out;
  for (const TextRange& range : ranges) out.emplace_back(text.substr(range.begin, range.end - range.begin));
  return out;
}

using Texts = std::vector<std::string>;

TEST(Regex, FindsLeftmostMatchesAndSkipsEmptyOnes) {
  EXPECT_EQ(Matches("a*", "baac"), Texts{"aa"});
  EXPECT_EQ(Matches("ab|a|b", "abba"), (Texts{"ab", "b", "a"}));
  EXPECT_EQ(Matches("x*", "é中"), Texts{});
  EXPECT_EQ(Matches("a", ""), Texts{});
}

TEST(Regex, KnowsUnicode) {
  EXPECT_EQ(Matches(R"(\p{L}+|\p{N}+)", "Größe中42½ ٣"), (Texts{"Größe中", "42½", "٣"}));
  EXPECT_EQ(Matches("(?i:'s|'ll)", "'S'Ll'x"), (Texts{"'S", "'Ll"}));
}

TEST(Regex, TakesWhiteSpaceAsUnicodeDefinesIt) {
  // U+180E is a format character since Unicode 6.3; U+0085, U+00A0 and U+3000 are spaces.
  EXPECT_EQ(Matches(R"(\s+)", "a \u0085\u00A0\u3000b\u180Ec"), Texts{" \u0085\u00A0\u3000"});
  EXPECT_EQ(Matches(R"([^\s]+)", "a\u2028b"), (Texts{"a", "b"}));
  EXPECT_EQ(Matches(R"(\S+)", "a\u2028b\u180E"), (Texts{"a", "b\u180E"}));
  EXPECT_EQ(Matches(R"(\w+)", "aé_1\u0301-b"), (Texts{"aé_1\u0301", "b"}));
}

TEST(Regex, TakesAnchorsAsLines) { EXPECT_EQ(Matches(R"(\s+$)", "a  \nb \n"), (Texts{"  ", " \n"})); }

TEST(TranslatePattern, RewritesWhatPcreReadsDifferently) {
  EXPECT_EQ(*TranslatePattern(R"(\u4e00\p{L}+\\s[\]a])", "t"), R"(\x{4e00}\p{L}+\\s[\]a])");
  EXPECT_EQ(*TranslatePattern(R"(\W)", "t"), R"([^\p{L}\p{M}\p{N}\p{Pc}])");
  EXPECT_EQ(*TranslatePattern("[]a][[:alpha:]]", "t"), "[]a][[:alpha:]]");
  EXPECT_EQ(*TranslatePattern("\\", "t"), "\\");
}

TEST(TranslatePattern, RefusesWhatItCannotRewrite) {
  const auto message = [](std::string_view pattern) { return TranslatePattern(pattern, "t").error().message; };
  EXPECT_EQ(message("a[b&&c]"), "t: an intersection of sets at byte 3 of pattern 'a[b&&c]' is not supported");
  EXPECT_EQ(message("[a[b]]"), "t: a set inside a set at byte 2 of pattern '[a[b]]' is not supported");
  EXPECT_EQ(message("x{1,3}+"), "t: a '+' after an interval at byte 5 of pattern 'x{1,3}+' is not supported");
  for (const std::string_view pattern :
       {R"([a\S])", R"(\h)", R"(\K)", R"(\R)", R"(\X)", R"(\u12)", R"(\uxyzt)", "[[:alpha]"}) {
    EXPECT_FALSE(TranslatePattern(pattern, "t").ok()) << pattern;
  }
}

TEST(Regex, RefusesBrokenAndHugePatterns) {
  EXPECT_EQ(Matches("a(b", "ab"), Texts{"test: pattern 'a(b': missing closing parenthesis at byte 3"});
  EXPECT_EQ(Regex::Compile(std::string(70'000, 'a'), "t").error().message,
            "t: pattern of 70000 bytes, at most 65536 are supported");
  EXPECT_FALSE(Regex::Compile("((a{1000}){1000}){1000}", "t").ok());
  EXPECT_FALSE(Regex::Compile("\\", "t").ok());
}

TEST(Regex, GivesUpOnPatternsThatNeedExponentialTime) {
  EXPECT_EQ(Matches("(a+)+b|c", "c" + std::string(2000, 'a')), Texts{"c"});
}

TEST(Regex, MatchesLongRunsInOnePiece) {
  for (const std::string_view pattern : {R"(\s+(?!\S)|\s+)", R"(\s*[\r\n]+|\s+(?!\S)|\s+)"}) {
    const std::string spaces(1'000'000, ' ');
    EXPECT_EQ(Matches(pattern, spaces), Texts{spaces});
  }
  const std::string letters(1'000'000, 'A');
  EXPECT_EQ(Matches(R"([\p{Lu}\p{Lo}]*[\p{Ll}\p{Lo}]+|[\p{Lu}\p{Lo}]+)", letters), Texts{letters});
}

TEST(EscapePattern, MatchesTheTextItself) {
  const std::string text = R"(a.b*c[d](e)\p{L}^$|?+-#& ~)";
  EXPECT_EQ(Matches(EscapePattern(text), "x" + text + "y"), Texts{text});
}

}  // namespace
}  // namespace npumoe
