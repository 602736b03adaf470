// SPDX-License-Identifier: Apache-2.0
#include "format/printable.h"

#include <gtest/gtest.h>

#include <span>

#include "format/foreign.h"

namespace npumoe {
namespace {

TEST(Printable, LeavesTextAndEscapesTheRest) {
  EXPECT_EQ(Printable(""), "");
  EXPECT_EQ(Printable("blk.0.ffn_gate_exps.weight 'x'"), "blk.0.ffn_gate_exps.weight 'x'");
  EXPECT_EQ(Printable(std::string_view("a\0b\n\t\x1b[0m\x7f\\", 11)), "a\\x00b\\x0a\\x09\\x1b[0m\\x7f\\x5c");
  EXPECT_EQ(Printable("é語😀"), "é語😀");
}

TEST(Printable, EscapesWhatIsNotUtf8) {
  EXPECT_EQ(Printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(Printable("\xc3"), "\\xc3");
  EXPECT_EQ(Printable("\xc3("), "\\xc3(");
  EXPECT_EQ(Printable("\xc0\x80"), "\\xc0\\x80");                                      // overlong
  EXPECT_EQ(Printable("\xe0\x80\x80"), "\\xe0\\x80\\x80");                             // overlong
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");                             // surrogate
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");                    // above U+10FFFF
  EXPECT_EQ(Printable("\xc2\x85"), "\\xc2\\x85");                                      // C1 control: next line
  EXPECT_EQ(Printable("\xe2\x80\xa8\xe2\x80\xae"), "\\xe2\\x80\\xa8\\xe2\\x80\\xae");  // line separator, override
}

TEST(Printable, CutsLongNames) {
  EXPECT_EQ(Printable("abcdef", 6), "abcdef");
  EXPECT_EQ(Printable("abcdefg", 6), "abcdef...");
  EXPECT_EQ(Printable(std::string(1 << 20, 'x')).size(), 103u);
}

TEST(Foreign, KnowsTheUsualMistakes) {
  const auto describe = [](std::string_view text) {
    return DescribeForeign(std::as_bytes(std::span(text))).value_or("unknown");
  };
  EXPECT_EQ(describe("\xef\xbb\xbf\r\n<HTML lang=en>"), "looks like an HTML page, not a model");
  EXPECT_EQ(describe("<!doctype html>"), "looks like an HTML page, not a model");
  EXPECT_EQ(describe("version https://git-lfs.github.com/spec/v1\n"),
            "looks like a Git LFS pointer, not the file it points to: fetch it with git lfs pull");
  EXPECT_EQ(describe("GGUF"), "is a GGUF file");
  EXPECT_EQ(describe(""), "unknown");
  EXPECT_EQ(describe("   "), "unknown");
  EXPECT_EQ(describe("version 3"), "unknown");
  EXPECT_EQ(describe(std::string(600, ' ') + "<html>"), "unknown");
}

}  // namespace
}  // namespace npumoe
