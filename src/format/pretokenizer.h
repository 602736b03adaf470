// SPDX-License-Identifier: Apache-2.0
// Cuts text into the pieces that a BPE merges inside of, by steps that are data.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/regex.h"
#include "npumoe/result.h"

namespace npumoe {

// What becomes of the matches of a split; the names are those of tokenizer.json.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

enum class PrependScheme { kNever, kFirst, kAlways };

// One step; it sees every piece of the step before it.
struct SplitStep {
  enum class Kind { kRegex, kDigits, kPrefixSpace, kMetaspace };
  Kind kind = Kind::kRegex;
  std::optional<Regex> regex;  // kRegex
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;             // kRegex: what lies between the matches counts as match
  bool individual_digits = false;  // kDigits
  std::string replacement;         // kMetaspace: stands for a space
  PrependScheme prepend = PrependScheme::kNever;
  bool split = true;  // kMetaspace: cut before each replacement
};

// Buffers of Split, reused between calls; the pieces borrow from the text.
struct SplitScratch {
  RegexScratch regex;
  std::vector<TextRange> pieces;  // the result, in `text`
  std::string_view text;
  std::vector<TextRange> next, matches;
  std::string current, rewritten;
};

// Immutable after construction.
class PreTokenizer {
 public:
  void Add(SplitStep step) { steps_.push_back(std::move(step)); }
  size_t n_steps() const { return steps_.size(); }

  // Fills scratch->text and scratch->pieces. Malformed bytes become pieces of one byte. `is_first`: `text` starts
  // where the whole input starts.
  void Split(std::string_view text, bool is_first, SplitScratch* scratch) const;

 private:
  std::vector<SplitStep> steps_;
};

// How GGUF files name their pre-tokenizer (tokenizer.ggml.pre), as data.
struct PreRule {
  std::string_view name;
  std::span<const std::string_view> patterns;  // applied one after another, matches isolated
  bool nfc = false;
  bool ignore_merges = false;  // a piece that is a token is not merged again
  bool add_bos = false;        // when the file does not say
};

// nullptr if unknown.
const PreRule* FindPreRule(std::string_view name);
std::vector<std::string_view> PreRuleNames();

}  // namespace npumoe
