// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/text.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <span>
#include <utility>

namespace npumoe {
namespace {

std::string Scaled(uint64_t value, double step, std::span<const char* const> units) {
  double scaled = static_cast<double>(value);
  size_t unit = 0;
  while (scaled >= step && unit + 1 < units.size()) {
    scaled /= step;
    ++unit;
  }
  return unit == 0 ? fmt::format("{}{}", value, units[0]) : fmt::format("{:.2f}{}", scaled, units[unit]);
}

// Length of a UTF-8 character by its first byte and the range its second byte must lie in (Unicode table 3-7);
// length 0 = no character starts so.
struct Lead {
  size_t length;
  uint8_t second_min, second_max;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// How many of the bytes at the start of `text` (not empty) agree with one UTF-8 character, and whether it is whole.
struct Match {
  size_t n_bytes;
  bool complete;
};

Match MatchCharacter(std::string_view text) {
  const Lead lead = LeadOf(static_cast<uint8_t>(text[0]));
  if (lead.length == 0) return {0, false};
  size_t n = 1;
  while (n < lead.length && n < text.size()) {
    const auto byte = static_cast<uint8_t>(text[n]);
    const uint8_t low = n == 1 ? lead.second_min : uint8_t{0x80};
    const uint8_t high = n == 1 ? lead.second_max : uint8_t{0xBF};
    if (byte < low || byte > high) break;
    ++n;
  }
  return {n, n == lead.length};
}

std::optional<uint8_t> HexByte(std::string_view digits) {
  uint8_t value = 0;
  if (digits.size() != 2) return std::nullopt;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + 2, value, 16);
  if (error != std::errc() || end != digits.data() + 2) return std::nullopt;
  return value;
}

// A C1 control (U+0080..U+009F) can start a terminal command as ESC does.
bool IsControl(std::string_view character) {
  const auto first = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7F;
  return character.size() == 2 && first == 0xC2 && static_cast<uint8_t>(character[1]) < 0xA0;
}

Result<uint32_t> ParseNumber(std::string_view text, uint32_t max_value, std::string_view what) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value > max_value) {
    return Error{Code::kInvalidArgument,
                 fmt::format("{}: wants whole numbers from 0 to {}, got '{}'", what, max_value, OneLine(text))};
  }
  return static_cast<uint32_t>(value);
}

// One item of a list: "a", "a-b", "a-b+step" or "a-b*factor", appended to `values`.
Status AppendRange(std::string_view item, uint32_t max_value, std::string_view what, std::vector<uint32_t>& values) {
  const size_t dash = item.find('-', 1);  // one in front is a sign, which no number here has
  const auto first = ParseNumber(item.substr(0, dash), max_value, what);
  if (!first) return first.error();
  uint32_t last = *first, step = 1;
  bool multiply = false;
  if (dash != std::string_view::npos) {
    const std::string_view rest = item.substr(dash + 1);
    const size_t mark = rest.find_first_of("+*");
    const auto end = ParseNumber(rest.substr(0, mark), max_value, what);
    if (!end) return end.error();
    last = *end;
    if (mark != std::string_view::npos) {
      multiply = rest[mark] == '*';
      const auto parsed = ParseNumber(rest.substr(mark + 1), max_value, what);
      if (!parsed) return parsed.error();
      step = *parsed;
    }
    if (last < *first || step == 0 || (multiply && (step == 1 || *first == 0))) {
      return Error{Code::kInvalidArgument,
                   fmt::format("{}: range '{}' does not go up from its start to its end", what, OneLine(item))};
    }
  }
  for (uint64_t value = *first; value <= last; value = multiply ? value * step : value + step) {
    if (values.size() == kMaxListValues) {
      return Error{Code::kInvalidArgument, fmt::format("{}: more than {} values", what, kMaxListValues)};
    }
    values.push_back(static_cast<uint32_t>(value));
  }
  return Ok{};
}

}  // namespace

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits{" B", " KiB", " MiB", " GiB", " TiB"};
  return Scaled(bytes, 1024.0, kUnits);
}

std::string FormatCount(uint64_t count) {
  static constexpr std::array<const char*, 5> kUnits{"", " K", " M", " B", " T"};
  return Scaled(count, 1000.0, kUnits);
}

std::string ThreePlaces(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  if (std::fabs(value) < 1e-9) return "0";  // what is left of differences
  // Of the rounded value: 9.996 has two digits before the point.
  const double rounded = std::strtod(fmt::format("{:.2e}", value).c_str(), nullptr);
  const int before = static_cast<int>(std::floor(std::log10(std::fabs(rounded)))) + 1;
  return fmt::format("{:.{}f}", value, std::clamp(3 - before, 0, 15));
}

Prefixed UnitFor(double largest, std::string_view unit) {
  constexpr std::array<std::pair<const char*, double>, 4> kPrefixes{{{"", 1}, {"m", 1e3}, {"u", 1e6}, {"n", 1e9}}};
  for (const auto& [prefix, per_unit] : kPrefixes) {
    if (largest * per_unit >= 0.9995 || largest <= 0) return {fmt::format("{}{}", prefix, unit), per_unit};
  }
  return {fmt::format("n{}", unit), 1e9};
}

std::string NamedLine(size_t width, std::string_view name, std::string_view value) {
  return fmt::format("{:<{}} {}\n", name, width, OneLine(value));
}

std::string OneLine(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  while (!text.empty()) {
    const Match match = MatchCharacter(text);
    const size_t n = std::max<size_t>(match.n_bytes, 1);
    const std::string_view character = text.substr(0, n);
    if (match.complete && !IsControl(character)) {
      line += character;
    } else if (character == "\n") {
      line += "\\n";
    } else if (character == "\t") {
      line += "\\t";
    } else {
      for (const char byte : character) line += fmt::format("\\x{:02X}", static_cast<uint8_t>(byte));
    }
    text.remove_prefix(n);
  }
  return line;
}

std::string Shortened(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  const auto inside = [&](size_t at) { return (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80; };
  size_t head = limit / 2, tail = text.size() - (limit - head - 3);
  while (head > 0 && inside(head)) --head;
  while (tail < text.size() && inside(tail)) ++tail;
  return fmt::format("{}...{}", text.substr(0, head), text.substr(tail));
}

std::string Unescape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char next = text[i + 1];
    static constexpr std::string_view kNames = "ntr\"'\\", kBytes = "\n\t\r\"'\\";
    const size_t known = kNames.find(next);
    if (known != std::string_view::npos) {
      out += kBytes[known];
      ++i;
    } else if (const auto byte = HexByte(text.substr(std::min(i + 2, text.size()), 2)); next == 'x' && byte) {
      out += static_cast<char>(*byte);
      i += 3;
    } else {
      out += '\\';
    }
  }
  return out;
}

Result<std::vector<uint32_t>> ParseList(std::string_view text, uint32_t max_value, std::string_view what) {
  std::vector<uint32_t> values;
  while (true) {
    const size_t comma = text.find(',');
    const Status added = AppendRange(text.substr(0, comma), max_value, what, values);
    if (!added) return added.error();
    if (comma == std::string_view::npos) return values;
    text.remove_prefix(comma + 1);
  }
}

std::string Utf8Gate::Push(std::string_view bytes) {
  held_ += bytes;
  // Only the last three bytes can belong to a character that is not whole yet.
  const size_t from = held_.size() > 3 ? held_.size() - 3 : 0;
  for (size_t start = from; start < held_.size(); ++start) {
    const Match match = MatchCharacter(std::string_view(held_).substr(start));
    if (match.n_bytes > 0 && !match.complete && start + match.n_bytes == held_.size()) {
      std::string ready = held_.substr(0, start);
      held_.erase(0, start);
      return ready;
    }
  }
  return Finish();
}

std::string Utf8Gate::Finish() {
  std::string rest;
  rest.swap(held_);
  return rest;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Match match = MatchCharacter(text);
    const size_t n = std::max<size_t>(match.n_bytes, 1);
    out += match.complete ? text.substr(0, n) : std::string_view("\xEF\xBF\xBD");
    text.remove_prefix(n);
  }
  return out;
}

}  // namespace npumoe
