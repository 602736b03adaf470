// SPDX-License-Identifier: Apache-2.0
#include "graph/names.h"

#include <algorithm>
#include <array>

namespace npumoe {
namespace {

// Keywords of MIL's text form.
constexpr std::array<std::string_view, 24> kKeywords{
    "any",  "bool", "program", "func", "tensor", "list",  "dict",  "tuple", "true",   "false",  "string", "bf16",
    "fp16", "fp32", "fp64",    "int8", "int16",  "int32", "int64", "uint8", "uint16", "uint32", "uint64", "state"};

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

bool IsLegalName(std::string_view name) {
  if (name.empty() || !IsLetter(name[0])) return false;
  if (!std::all_of(name.begin(), name.end(), [](char c) { return IsLetter(c) || IsDigit(c); })) return false;
  return std::find(kKeywords.begin(), kKeywords.end(), name) == kKeywords.end();
}

std::string LegalName(std::string_view name) {
  std::string legal(name);
  for (char& c : legal) {
    if (!IsLetter(c) && !IsDigit(c)) c = '_';
  }
  if (!IsLegalName(legal)) legal.insert(legal.begin(), '_');
  return legal;
}

std::string ShownName(std::string_view name, size_t most_shown) {
  std::string shown(name.substr(0, most_shown));
  for (char& c : shown) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return name.size() > most_shown ? shown + "..." : shown;
}

}  // namespace npumoe
