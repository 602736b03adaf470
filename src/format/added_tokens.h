// SPDX-License-Identifier: Apache-2.0
// Tokens that are found in the text before any merging: control tokens and words a model's maker added.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

// Longest text of an added token; the search takes this many steps per byte of text at worst.
// The longest known is 27 bytes; assumed: nobody needs more than this.
inline constexpr size_t kMaxAddedTokenBytes = 256;

struct AddedToken {
  std::string text;
  int32_t id = -1;
  bool is_control = false;              // matched only when the caller parses control tokens
  bool lstrip = false, rstrip = false;  // swallow the whitespace before, after
  bool single_word = false;             // not inside a longer word
};

// A token found in a text: the bytes it takes, stripped whitespace included.
struct AddedMatch {
  size_t begin = 0, end = 0;
  int32_t id = -1;
};

// A set of added tokens. Immutable once filled.
class AddedTokens {
 public:
  // kUnsupported above kMaxAddedTokenBytes, kCorruptFile for an empty text. The first of two equal texts stays.
  Status Add(AddedToken token, std::string_view subject);
  bool empty() const { return tokens_.empty(); }
  const std::vector<AddedToken>& tokens() const { return tokens_; }

  // The leftmost token at or after `from`, the longest of those that start there.
  std::optional<AddedMatch> FindNext(std::string_view text, size_t from, bool parse_control) const;

 private:
  std::optional<AddedMatch> MatchAt(std::string_view text, size_t from, size_t at, bool parse_control) const;

  std::vector<AddedToken> tokens_;
  // A trie over bytes: (node << 8 | byte) to node; node 0 is the root.
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> token_at_{-1};  // per node: index into tokens_ or -1
  std::array<bool, 256> starts_{};     // bytes some token starts with
};

}  // namespace npumoe
