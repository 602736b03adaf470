// SPDX-License-Identifier: Apache-2.0
// Pure text helpers of the command line: units, lists, escapes, and bytes that may be shown.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

// "1.50 GiB", "12.0 MiB", "3.2 KiB", "17 B": powers of 1,024, three or four digits.
std::string FormatBytes(uint64_t bytes);
// "30.53 B", "131.07 M", "4.10 K", "12": powers of 1,000.
std::string FormatCount(uint64_t count);

// Of three digits, or all that stand before the point: "1234", "12.3", "0.0123"; "0" below 1e-9.
std::string ThreePlaces(double value);
// A unit in which `largest` has one to three digits before the point, or the smallest of them: s, ms, us, ns. `unit` is
// "s", "J" or the like.
struct Prefixed {
  std::string name;  // "ms"
  double per_unit;   // 1e3
};
Prefixed UnitFor(double largest, std::string_view unit);

// `text` in one line that a terminal cannot take for commands: control characters and invalid UTF-8 become \n, \t or
// \xNN. For people to read, not to parse back.
std::string OneLine(std::string_view text);

// Of a longer `text` its beginning, "..." and its end, together `limit` or a little less; UTF-8 characters stay whole.
inline constexpr size_t kMaxShownBytes = 80;
std::string Shortened(std::string_view text, size_t limit = kMaxShownBytes);

// One line of a report: the name, padded to `width`, and the value in one line (OneLine).
std::string NamedLine(size_t width, std::string_view name, std::string_view value);

// \n \t \r \" \' \\ and \xNN become their byte; any other backslash stays as it is.
std::string Unescape(std::string_view text);

// "512", "512,1024", "512-2048*2", "512-2048+512": lists and ranges as llama-bench takes them. `what` names the flag.
// At most kMaxListValues numbers, each <= max_value.
inline constexpr size_t kMaxListValues = 1024;  // more tests than anyone waits for
Result<std::vector<uint32_t>> ParseList(std::string_view text, uint32_t max_value, std::string_view what);

// Passes bytes on, but holds back the start of a UTF-8 character until its rest arrives, so that a terminal never
// sees half a character. Bytes that cannot start or continue one pass through unchanged.
class Utf8Gate {
 public:
  // The bytes that may be shown now.
  std::string Push(std::string_view bytes);
  // What is still held back, complete or not.
  std::string Finish();

 private:
  std::string held_;  // at most three bytes: a proper prefix of a valid character
};

// Text as JSON needs it: bytes that are not UTF-8 become U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);

}  // namespace npumoe
