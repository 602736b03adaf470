// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/text.h"

#include <gtest/gtest.h>

#include "apps/npumoe/progress.h"

namespace npumoe {
namespace {

TEST(ThreePlaces, AlwaysShowsThem) {
  for (const auto& [value, text] : std::initializer_list<std::pair<double, const char*>>{{0, "0"},
                                                                                         {7e-15, "0"},
                                                                                         {1, "1.00"},
                                                                                         {12.345, "12.3"},
                                                                                         {999.6, "1000"},
                                                                                         {9.996, "10.0"},
                                                                                         {0.09999, "0.100"},
                                                                                         {123456, "123456"},
                                                                                         {0.00012345, "0.000123"},
                                                                                         {-0.0456, "-0.0456"}}) {
    EXPECT_EQ(ThreePlaces(value), text);
  }
}

TEST(SpeedText, NeverShowsNothingPerSecond) {
  EXPECT_EQ(SpeedText(12.34, "tokens", "t/s"), "12.3 t/s");
  EXPECT_EQ(SpeedText(0.1, "prompts", "prompts/s"), "0.1 prompts/s");
  EXPECT_EQ(SpeedText(0.05, "prompts", "prompts/s"), "20.0 s/prompt");
  EXPECT_EQ(SpeedText(0.001, "tokens", "t/s"), "1000.0 s/token");
}

TEST(UnitFor, PutsOneToThreePlacesBeforeThePoint) {
  for (const auto& [largest, name] : std::initializer_list<std::pair<double, const char*>>{{0, "s"},
                                                                                           {1, "s"},
                                                                                           {5000, "s"},
                                                                                           {0.9999, "s"},
                                                                                           {0.99, "ms"},
                                                                                           {0.001, "ms"},
                                                                                           {0.0009, "us"},
                                                                                           {2e-9, "ns"},
                                                                                           {2e-15, "ns"}}) {
    EXPECT_EQ(UnitFor(largest, "s").name, name) << largest;
  }
  EXPECT_EQ(UnitFor(0.02, "J").per_unit, 1e3);
}

TEST(FormatBytes, UsesPowersOf1024) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.00 KiB");
  EXPECT_EQ(FormatBytes(1536ull << 20), "1.50 GiB");
  EXPECT_EQ(FormatBytes(5000ull << 40), "5000.00 TiB");
}

TEST(FormatCount, UsesPowersOf1000) {
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(131072), "131.07 K");
  EXPECT_EQ(FormatCount(30532122624), "30.53 B");
}

TEST(OneLine, LeavesTextAndEscapesWhatATerminalObeys) {
  EXPECT_EQ(OneLine("Café 😊 \\"), "Café 😊 \\");
  EXPECT_EQ(OneLine("a\nb\tc\r"), "a\\nb\\tc\\x0D");
  EXPECT_EQ(OneLine("\x1B[31m"), "\\x1B[31m");
  EXPECT_EQ(OneLine(std::string_view("\0\x7F", 2)), "\\x00\\x7F");
  EXPECT_EQ(OneLine("\xC2\x9B"
                    "2J"),
            "\\xC2\\x9B2J");                   // CSI as one C1 character
  EXPECT_EQ(OneLine("\xC2\xA0"), "\xC2\xA0");  // the first character above C1
  EXPECT_EQ(OneLine("\xFF\xE2\x82z"), "\\xFF\\xE2\\x82z");
  EXPECT_EQ(OneLine("\xED\xA0\x80"), "\\xED\\xA0\\x80");  // a surrogate is not UTF-8
}

TEST(Unescape, KnowsTheCommonEscapesOnly) {
  EXPECT_EQ(Unescape("a\\nb\\t\\\\\\\"\\'\\r"), "a\nb\t\\\"'\r");
  EXPECT_EQ(Unescape("\\x41\\x0a\\xC3\\xa9"), "A\n\xC3\xA9");
  EXPECT_EQ(Unescape("\\q \\x4 \\xZZ \\"), "\\q \\x4 \\xZZ \\");
}

TEST(ParseList, TakesListsAndRanges) {
  const auto list = [](std::string_view text) { return ParseList(text, 100000, "-p").value(); };
  EXPECT_EQ(list("512"), (std::vector<uint32_t>{512}));
  EXPECT_EQ(list("0,7,3"), (std::vector<uint32_t>{0, 7, 3}));
  EXPECT_EQ(list("1-4"), (std::vector<uint32_t>{1, 2, 3, 4}));
  EXPECT_EQ(list("512-2048*2"), (std::vector<uint32_t>{512, 1024, 2048}));
  EXPECT_EQ(list("10-35+10,1"), (std::vector<uint32_t>{10, 20, 30, 1}));
  EXPECT_EQ(list("5-5"), (std::vector<uint32_t>{5}));
}

TEST(ParseList, NamesTheFlagAndTheLimit) {
  for (const char* text :
       {"", "a", "1,", "-1", "1.5", "100001", "4-1", "1-4+0", "1-4*1", "0-8*2", "1-", "99999999999999999999"}) {
    const auto list = ParseList(text, 100000, "-p");
    ASSERT_FALSE(list.ok()) << text;
    EXPECT_EQ(list.error().code, Code::kInvalidArgument) << text;
    EXPECT_EQ(list.error().message.substr(0, 4), "-p: ") << text;
  }
  EXPECT_EQ(ParseList("1,x", 9, "-n").error().message, "-n: wants whole numbers from 0 to 9, got 'x'");
  EXPECT_EQ(ParseList("1-1024", 100000, "-p").value().size(), kMaxListValues);
  EXPECT_EQ(ParseList("1-1025", 100000, "-p").error().message, "-p: more than 1024 values");
}

TEST(Utf8Gate, HoldsBackHalfCharactersByteByByte) {
  const std::string text = "aé€😊z";
  Utf8Gate gate;
  std::vector<std::string> shown;
  for (const char byte : text) shown.push_back(gate.Push({&byte, 1}));
  EXPECT_EQ(shown, (std::vector<std::string>{"a", "", "é", "", "", "€", "", "", "", "😊", "z"}));
  EXPECT_EQ(gate.Finish(), "");
}

TEST(Utf8Gate, PassesInvalidBytesAtOnceAndTheHeldOnesAtTheEnd) {
  Utf8Gate gate;
  EXPECT_EQ(gate.Push("\x80\xFF"), "\x80\xFF");
  EXPECT_EQ(gate.Push("\xF0\x9F"), "");
  EXPECT_EQ(gate.Push("x"), "\xF0\x9Fx");  // not continued: shown as it came
  EXPECT_EQ(gate.Push("ab\xE2\x82"), "ab");
  EXPECT_EQ(gate.Finish(), "\xE2\x82");
  EXPECT_EQ(gate.Push("\xE0\x80"), "\xE0\x80");  // overlong: can never become a character
}

TEST(Shortened, KeepsBeginningAndEnd) {
  const std::string fits(kMaxShownBytes, 'x');
  EXPECT_EQ(Shortened(fits), fits);
  const std::string shown = Shortened("begin" + std::string(100'000, 'x') + "end");
  EXPECT_EQ(shown.size(), kMaxShownBytes);
  EXPECT_TRUE(shown.starts_with("beginx") && shown.ends_with("xend")) << shown;
  EXPECT_NE(shown.find("x...x"), std::string::npos);
}

TEST(Shortened, CutsBetweenCharacters) {
  for (const std::string character : {"é", "€", "🌍"}) {
    for (size_t n_before = 0; n_before < 4; ++n_before) {
      std::string text(n_before, 'x');
      for (int i = 0; i < 100; ++i) text += character;
      const std::string shown = Shortened(text);
      EXPECT_LE(shown.size(), kMaxShownBytes);
      EXPECT_GT(shown.size(), kMaxShownBytes - 8);
      EXPECT_EQ(ReplaceInvalidUtf8(shown), shown);
    }
  }
}

TEST(ReplaceInvalidUtf8, PutsOneReplacementPerBrokenSequence) {
  EXPECT_EQ(ReplaceInvalidUtf8("é\xFFz"), "é\xEF\xBF\xBDz");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE2\x82"), "\xEF\xBF\xBD");
  EXPECT_EQ(ReplaceInvalidUtf8("plain"), "plain");
}

}  // namespace
}  // namespace npumoe
