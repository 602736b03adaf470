// SPDX-License-Identifier: Apache-2.0
// What a tokenizer does to text before it cuts it: NFC, a prefix, replacements, as data.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/regex.h"
#include "npumoe/result.h"

namespace npumoe {

// A file could ask for replacements of replacements without end. Real ones make three bytes of a space.
inline constexpr size_t kMaxNormalizerGrowth = 64;  // assumed: ample
inline constexpr size_t kMaxNormalizerSteps = 64;
inline constexpr size_t kMaxPrefixBytes = 256;

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
  // kUnsupported if the steps together could make text grow beyond kMaxNormalizerGrowth times its length, or are too
  // many.
  Status Add(NormalizerStep step, std::string_view subject);
  bool empty() const { return steps_.empty(); }

  // The steps in order; an empty text stays empty. Malformed bytes pass unchanged.
  std::string Apply(std::string_view text) const;

 private:
  std::vector<NormalizerStep> steps_;
  size_t growth_ = 1;  // bytes of output for a byte of input, at most
};

}  // namespace npumoe
