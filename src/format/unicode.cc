// SPDX-License-Identifier: Apache-2.0
#include "format/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace npumoe {
namespace {

bool IsContinuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

bool NeedsNfc(std::string_view text) {
  // Below U+0300 every character is its own NFC form and combines with nothing before it. Lead bytes below 0xCC start
  // these characters; continuation bytes are below 0xC0.
  return std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

int CombiningClass(int32_t code) { return utf8proc_get_property(code)->combining_class; }

// Full canonical decomposition of one character, appended.
void Decompose(char32_t code, std::vector<int32_t>* out) {
  int32_t buffer[8];  // the longest canonical decomposition has four characters
  int last_class = 0;
  const auto n =
      utf8proc_decompose_char(static_cast<int32_t>(code), buffer, 8,
                              static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE), &last_class);
  if (n <= 0 || n > 8) {
    out->push_back(static_cast<int32_t>(code));
  } else {
    out->insert(out->end(), buffer, buffer + n);
  }
}

// Puts runs of combining marks into canonical order. utf8proc does it by insertion, which is quadratic in the
// length of a run; after this its pass finds nothing to move.
void SortMarks(std::vector<int32_t>* codes) {
  const auto by_class = [](int32_t a, int32_t b) { return CombiningClass(a) < CombiningClass(b); };
  auto it = codes->begin();
  while (it != codes->end()) {
    if (CombiningClass(*it) == 0) {
      ++it;
      continue;
    }
    const auto end = std::find_if(it, codes->end(), [](int32_t code) { return CombiningClass(code) == 0; });
    std::stable_sort(it, end, by_class);
    it = end;
  }
}

void AppendNfc(std::string_view valid, std::string* out) {
  std::vector<int32_t> codes;
  codes.reserve(valid.size());
  for (size_t pos = 0; pos < valid.size();) {
    const Utf8Char c = DecodeUtf8(valid, pos);
    Decompose(c.code, &codes);
    pos += c.length;
  }
  SortMarks(&codes);
  const auto n = utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                                          static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  if (n < 0) {  // cannot happen with the options above; the text itself is then the safest answer
    out->append(valid);
    return;
  }
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) AppendUtf8(static_cast<char32_t>(codes[i]), out);
}

}  // namespace

Utf8Char DecodeUtf8(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[pos + i]); };
  const size_t left = text.size() - pos;
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xC2 || lead > 0xF4) return {};
  if (left < 2 || !IsContinuation(byte(1))) return {};
  if (lead < 0xE0) return {static_cast<char32_t>((lead & 0x1F) << 6 | (byte(1) & 0x3F)), 2};
  if (left < 3 || !IsContinuation(byte(2))) return {};
  if (lead < 0xF0) {
    const auto code = static_cast<char32_t>((lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F));
    if (code < 0x800 || (code >= 0xD800 && code <= 0xDFFF)) return {};
    return {code, 3};
  }
  if (left < 4 || !IsContinuation(byte(3))) return {};
  const auto code =
      static_cast<char32_t>((lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F));
  if (code < 0x10000 || code > 0x10FFFF) return {};
  return {code, 4};
}

void AppendUtf8(char32_t code, std::string* out) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    const size_t length = DecodeUtf8(text, pos).length;
    if (length == 0) break;
    pos += length;
  }
  return pos;
}

std::string Nfc(std::string_view text) {
  if (!NeedsNfc(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    if (valid > 0) AppendNfc(text.substr(0, valid), &out);
    text.remove_prefix(valid);
    if (text.empty()) break;
    out.push_back(text.front());
    text.remove_prefix(1);
  }
  return out;
}

bool IsWhitespace(char32_t code) {
  // Unicode PropList.txt, White_Space.
  return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

bool IsWordCharacter(char32_t code) {
  const int category = utf8proc_category(static_cast<int32_t>(code));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NO) || category == UTF8PROC_CATEGORY_PC;
}

bool IsNumeric(char32_t code) {
  const int category = utf8proc_category(static_cast<int32_t>(code));
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

}  // namespace npumoe
