// SPDX-License-Identifier: Apache-2.0
// What a tokenizer does to text before it cuts it: NFC, a prefix, replacements, as data.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/regex.h"

namespace npumoe {

struct NormalizerStep {
  enum class Kind { kNfc, kPrepend, kReplaceText, kReplacePattern };
  Kind kind = Kind::kNfc;
  std::string text;            // kPrepend: the prefix; kReplaceText: what to look for, not empty
  std::string content;         // kReplace*: what to put there
  std::optional<Regex> regex;  // kReplacePattern
};

// Immutable once filled.
class TextNormalizer {
 public:
  void Add(NormalizerStep step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  // The steps in order; an empty text stays empty. Malformed bytes pass unchanged.
  std::string Apply(std::string_view text) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace npumoe
