// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/values.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "apps/npumoe/text.h"

namespace npumoe {
namespace {

// What is wrong with `text`: "wants X, got 'Y'".
std::string Wants(const std::string& wanted, const std::string& text) {
  return text.empty() ? "the value is empty" : fmt::format("wants {}, got '{}'", wanted, OneLine(text));
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Whether CLI11, which reads a leading 0 as octal, takes the digits for what they say.
bool IsDecimal(std::string_view digits) {
  return !digits.empty() && std::ranges::all_of(digits, IsDigit) && (digits.size() == 1 || digits[0] != '0');
}

bool IsWholeIn(std::string_view text, int64_t low, uint64_t high) {
  const bool negative = text.starts_with('-');
  if (!IsDecimal(text.substr(negative ? 1 : 0))) return false;
  const char* const end = text.data() + text.size();
  if (negative) {
    int64_t value = 0;
    return std::from_chars(text.data(), end, value).ec == std::errc() && value >= low && value < 0;
  }
  uint64_t value = 0;
  return std::from_chars(text.data(), end, value).ec == std::errc() && value <= high &&
         (low <= 0 || value >= static_cast<uint64_t>(low));
}

// No number where `text` is none, or has other letters than those of an exponent: strtod knows hexadecimal, "nan" and
// "inf" besides. std::from_chars for double is missing from libc++.
double ToDouble(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789.+-eE") != std::string::npos) return NAN;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return *end == '\0' ? value : NAN;
}

CLI::Validator Members(const std::vector<std::string>& known, const std::string& shown) {
  const auto check = [known](std::string& text) {
    if (std::ranges::find(known, text) != known.end()) return std::string();
    return Wants(fmt::format("one of {}", fmt::join(known, ", ")), text);
  };
  return {check, shown};
}

}  // namespace

CLI::Validator WholeIn(int64_t low, uint64_t high) {
  const auto check = [low, high](std::string& text) {
    if (IsWholeIn(text, low, high)) return std::string();
    return Wants(fmt::format("a whole number from {} to {}", low, high), text);
  };
  return {check, ""};
}

CLI::Validator NumberIn(double low, double high) {
  const auto check = [low, high](std::string& text) {
    const double value = ToDouble(text);  // negated comparisons would let NaN in
    if (value >= low && value <= high) return std::string();
    return Wants(fmt::format("a number from {} to {}", low, high), text);
  };
  return {check, ""};
}

CLI::Validator NumberAbove(double low, double high) {
  const auto check = [low, high](std::string& text) {
    const double value = ToDouble(text);
    if (value > low && value <= high) return std::string();
    return Wants(fmt::format("a number above {}, up to {}", low, high), text);
  };
  return {check, ""};
}

CLI::Validator MemberOf(const std::vector<std::string_view>& names) {
  return Members({names.begin(), names.end()}, fmt::format("{{{}}}", fmt::join(names, ",")));
}

CLI::Validator SilentMemberOf(const std::vector<std::string>& names) { return Members(names, ""); }

CLI::Validator NotStdout(const std::string& what) {
  const auto check = [what](std::string& text) {
    return text == "-" ? fmt::format("wants {}, - (stdout) cannot hold it", what) : std::string();
  };
  return {check, ""};
}

std::string OneOf(const std::vector<std::string_view>& names) {
  return fmt::format("one of: {}", fmt::join(names, ", "));
}

}  // namespace npumoe
