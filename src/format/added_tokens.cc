// SPDX-License-Identifier: Apache-2.0
#include "format/added_tokens.h"

#include <algorithm>

#include "base/check.h"
#include "format/unicode.h"

namespace npumoe {
namespace {

// The character that ends just before `pos`; length 0 at the start or after malformed bytes.
Utf8Char CharacterBefore(std::string_view text, size_t pos) {
  for (size_t length = 1; length <= 4 && length <= pos; ++length) {
    const Utf8Char c = DecodeUtf8(text, pos - length);
    if (c.length == length) return c;
  }
  return {};
}

bool WordCharacterAt(std::string_view text, size_t pos) {
  if (pos >= text.size()) return false;
  const Utf8Char c = DecodeUtf8(text, pos);
  return c.length > 0 && IsWordCharacter(c.code);
}

bool WordCharacterBefore(std::string_view text, size_t pos) {
  const Utf8Char c = CharacterBefore(text, pos);
  return c.length > 0 && IsWordCharacter(c.code);
}

}  // namespace

Status AddedTokens::Add(AddedToken token, std::string_view subject) {
  if (token.text.empty()) return MakeError(Code::kCorruptFile, "{}: added token {} has no text", subject, token.id);
  if (token.text.size() > kMaxAddedTokenBytes) {
    return MakeError(Code::kUnsupported, "{}: added token {} has {} bytes, at most {} are supported", subject, token.id,
                     token.text.size(), kMaxAddedTokenBytes);
  }
  uint32_t node = 0;
  for (const char c : token.text) {
    const uint64_t edge = static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(c);
    const auto [it, is_new] = edges_.try_emplace(edge, static_cast<uint32_t>(token_at_.size()));
    if (is_new) token_at_.push_back(-1);
    node = it->second;
  }
  if (token_at_[node] >= 0) return Ok{};
  token_at_[node] = static_cast<int32_t>(tokens_.size());
  starts_[static_cast<unsigned char>(token.text[0])] = true;
  tokens_.push_back(std::move(token));
  return Ok{};
}

std::optional<AddedMatch> AddedTokens::MatchAt(std::string_view text, size_t from, size_t at,
                                               bool parse_control) const {
  const AddedToken* best = nullptr;
  size_t best_end = 0;
  uint32_t node = 0;
  for (size_t pos = at; pos < text.size(); ++pos) {
    const auto it = edges_.find(static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(text[pos]));
    if (it == edges_.end()) break;
    node = it->second;
    if (token_at_[node] < 0) continue;
    const AddedToken& token = tokens_[static_cast<size_t>(token_at_[node])];
    if (token.is_control && !parse_control) continue;
    if (token.single_word && (WordCharacterBefore(text, at) || WordCharacterAt(text, pos + 1))) continue;
    best = &token;
    best_end = pos + 1;
  }
  if (best == nullptr) return std::nullopt;
  AddedMatch match{at, best_end, best->id};
  while (best->lstrip && match.begin > from) {
    const Utf8Char c = CharacterBefore(text, match.begin);
    if (c.length == 0 || c.length > match.begin - from || !IsWhitespace(c.code)) break;
    match.begin -= c.length;
  }
  while (best->rstrip && match.end < text.size()) {
    const Utf8Char c = DecodeUtf8(text, match.end);
    if (c.length == 0 || !IsWhitespace(c.code)) break;
    match.end += c.length;
  }
  return match;
}

std::optional<AddedMatch> AddedTokens::FindNext(std::string_view text, size_t from, bool parse_control) const {
  if (empty()) return std::nullopt;
  for (size_t at = from; at < text.size(); ++at) {
    if (!starts_[static_cast<unsigned char>(text[at])]) continue;
    if (const auto match = MatchAt(text, from, at, parse_control)) return match;
  }
  return std::nullopt;
}

}  // namespace npumoe
