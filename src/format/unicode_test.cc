// SPDX-License-Identifier: Apache-2.0
#include "format/unicode.h"

#include <gtest/gtest.h>

namespace npumoe {
namespace {

TEST(DecodeUtf8, ReadsTheFirstAndLastOfEveryLength) {
  const auto decode = [](std::string_view text) {
    const Utf8Char c = DecodeUtf8(text, 0);
    return std::pair(static_cast<uint32_t>(c.code), c.length);
  };
  EXPECT_EQ(decode(std::string_view("\0", 1)), std::pair(0u, size_t{1}));
  EXPECT_EQ(decode("\x7F"), std::pair(0x7Fu, size_t{1}));
  EXPECT_EQ(decode("\xC2\x80"), std::pair(0x80u, size_t{2}));
  EXPECT_EQ(decode("\xDF\xBF"), std::pair(0x7FFu, size_t{2}));
  EXPECT_EQ(decode("\xE0\xA0\x80"), std::pair(0x800u, size_t{3}));
  EXPECT_EQ(decode("\xED\x9F\xBF"), std::pair(0xD7FFu, size_t{3}));
  EXPECT_EQ(decode("\xEF\xBF\xBF"), std::pair(0xFFFFu, size_t{3}));
  EXPECT_EQ(decode("\xF0\x90\x80\x80"), std::pair(0x10000u, size_t{4}));
  EXPECT_EQ(decode("\xF4\x8F\xBF\xBF"), std::pair(0x10FFFFu, size_t{4}));
}

TEST(DecodeUtf8, RefusesMalformedSequences) {
  for (const std::string_view text :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80", "\xFF", "\xC2", "\xE0\xA0", "\xF0\x90\x80",
        "\xC2"
        "A",
        "\xE0\xA0"
        "A",
        "\xF0\x90\x80"
        "A"}) {
    EXPECT_EQ(DecodeUtf8(text, 0).length, 0u) << testing::PrintToString(text);
  }
}

TEST(AppendUtf8, IsTheInverseOfDecodeUtf8) {
  for (char32_t code = 0; code <= 0x10FFFF; code += code < 0x900 ? 1 : 97) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(code, &text);
    const Utf8Char c = DecodeUtf8(text, 0);
    ASSERT_EQ(c.code, code);
    ASSERT_EQ(c.length, text.size());
  }
}

TEST(ValidUtf8Prefix, EndsAtTheFirstMalformedByte) {
  EXPECT_EQ(ValidUtf8Prefix(""), 0u);
  EXPECT_EQ(ValidUtf8Prefix("aé中"), 6u);
  EXPECT_EQ(ValidUtf8Prefix("aé\xFFz"), 3u);
  EXPECT_EQ(ValidUtf8Prefix("a\xC3"), 1u);
}

TEST(Nfc, ComposesReordersAndExcludes) {
  EXPECT_EQ(Nfc("plain"), "plain");
  EXPECT_EQ(Nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(Nfc("\u212B"), "\u00C5");                // Angstrom sign is a singleton
  EXPECT_EQ(Nfc("a\u0302\u0323"), "\u1EAD");         // dot below comes first, then both compose
  EXPECT_EQ(Nfc("q\u0307\u0323"), "q\u0323\u0307");  // nothing composes, but the order is fixed
  EXPECT_EQ(Nfc("\u1100\u1161\u11A8"), "\uAC01");    // Hangul
  EXPECT_EQ(Nfc("\u0958"), "\u0915\u093C");          // composition exclusion
  EXPECT_EQ(Nfc("\u0301"), "\u0301");                // a mark with nothing before it
  EXPECT_EQ(Nfc("\uFB01"), "\uFB01");                // compatibility forms stay
  EXPECT_EQ(Nfc("\u0344"), "\u0308\u0301");          // excluded even at the start
}

TEST(Nfc, LeavesMalformedBytesAndDoesNotComposeAcrossThem) {
  EXPECT_EQ(Nfc("e\xFF\u0301"), "e\xFF\u0301");
  EXPECT_EQ(Nfc("\xE9"
                "e\u0301\xF0\x9F"),
            "\xE9\u00E9\xF0\x9F");
}

TEST(Nfc, SortsALongRunOfMarks) {
  constexpr int kPairs = 100'000;
  std::string text = "a", below, above;
  for (int i = 0; i < kPairs; ++i) {
    text += "\u0301\u0316";  // above and below: classes 230 and 220
    below += "\u0316";
    if (i > 0) above += "\u0301";
  }
  // The first mark above composes with the letter, over the marks below that now stand between.
  const std::string wanted = "\u00E1" + below + above;
  EXPECT_TRUE(Nfc(text) == wanted);
}

TEST(Properties, FollowUnicode) {
  for (const char32_t code : {0x9, 0xD, 0x20, 0x85, 0xA0, 0x1680, 0x2000, 0x200A, 0x2028, 0x3000})
    EXPECT_TRUE(IsWhitespace(code));
  for (const char32_t code : {0x8, 0xE, 0x180E, 0x200B, 0xFEFF}) EXPECT_FALSE(IsWhitespace(code));
  for (const char32_t code : {U'a', U'é', U'中', U'_', U'7', char32_t{0x301}}) EXPECT_TRUE(IsWordCharacter(code));
  for (const char32_t code : {U' ', U'-', U'<', U'。'}) EXPECT_FALSE(IsWordCharacter(code));
  for (const char32_t code : {U'0', U'½', U'Ⅷ', U'٣', U'²'}) EXPECT_TRUE(IsNumeric(code));
  EXPECT_FALSE(IsNumeric(U'a'));
  EXPECT_FALSE(IsNumeric(U'一'));  // a number in Chinese, but a letter to Unicode
}

}  // namespace
}  // namespace npumoe
