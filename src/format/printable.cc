// SPDX-License-Identifier: Apache-2.0
#include "format/printable.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>

namespace npumoe {
namespace {

struct Decoded {
  uint32_t rune = 0;
  size_t length = 0;  // 0: not UTF-8
};

// One UTF-8 sequence at the start of `bytes`, which is not empty. Overlong forms and surrogates are not UTF-8.
Decoded DecodeOne(std::string_view bytes) {
  const auto lead = static_cast<uint8_t>(bytes[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || bytes.size() < length) return {};
  uint32_t rune = lead & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<uint8_t>(bytes[i]);
    if ((next & 0xc0u) != 0x80u) return {};
    rune = (rune << 6) | (next & 0x3fu);
  }
  if (length == 3 && (rune < 0x800 || (rune >= 0xd800 && rune < 0xe000))) return {};
  if (length == 4 && (rune < 0x10000 || rune > 0x10ffff)) return {};
  return {rune, length};
}

// Characters that would break or reorder a line of a terminal.
bool IsUnsafe(uint32_t rune) {
  return rune < 0x20 || (rune >= 0x7f && rune < 0xa0) || rune == '\\' || rune == 0x200e || rune == 0x200f ||
         (rune >= 0x2028 && rune <= 0x202e) || (rune >= 0x2066 && rune <= 0x2069) || rune == 0xfeff;
}

}  // namespace

std::string Printable(std::string_view bytes, size_t limit_bytes) {
  std::string out;
  while (!bytes.empty()) {
    if (out.size() >= limit_bytes) return out + "...";
    const Decoded decoded = DecodeOne(bytes);
    const size_t length = decoded.length == 0 ? 1 : decoded.length;
    if (decoded.length == 0 || IsUnsafe(decoded.rune)) {
      for (const char c : bytes.substr(0, length)) {
        fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<uint8_t>(c));
      }
    } else {
      out += bytes.substr(0, length);
    }
    bytes.remove_prefix(length);
  }
  return out;
}

}  // namespace npumoe
