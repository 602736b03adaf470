// SPDX-License-Identifier: Apache-2.0
// UTF-8 and the few Unicode questions that tokenizers ask. Text from outside may be malformed anywhere.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace npumoe {

// One decoded character; length 0 means that no well-formed sequence starts there.
struct Utf8Char {
  char32_t code = 0;
  size_t length = 0;
};

// The character at text[pos], pos < text.size(). Overlong forms, surrogates and codes above U+10FFFF are malformed.
Utf8Char DecodeUtf8(std::string_view text, size_t pos);

void AppendUtf8(char32_t code, std::string* out);

// Length of the longest well-formed beginning of `text`.
size_t ValidUtf8Prefix(std::string_view text);

// Unicode normalization form C in n log n time. Malformed bytes stay as they are and separate what is around them.
std::string Nfc(std::string_view text);

bool IsWhitespace(char32_t code);     // property White_Space
bool IsWordCharacter(char32_t code);  // letters, marks, numbers, connector punctuation
bool IsNumeric(char32_t code);        // general category N

}  // namespace npumoe
