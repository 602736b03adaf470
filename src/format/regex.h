// SPDX-License-Identifier: Apache-2.0
// Split patterns of tokenizers, run by PCRE2 without JIT and without recursion on the machine stack.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;

namespace npumoe {

// Half-open range of bytes in some text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const TextRange&) const = default;
};

// Memory for matching, reused between calls. One thread at a time.
class RegexScratch {
 public:
  RegexScratch();

 private:
  friend class Regex;
  struct FreeData {
    void operator()(pcre2_real_match_data_8* data) const;
  };
  struct FreeContext {
    void operator()(pcre2_real_match_context_8* context) const;
  };
  std::unique_ptr<pcre2_real_match_data_8, FreeData> data_;
  std::unique_ptr<pcre2_real_match_context_8, FreeContext> context_;
};

// Immutable after construction.
class Regex {
 public:
  // `pattern` in the dialect of tokenizer.json (Oniguruma with Ruby syntax), of which classes, properties, groups and
  // look-around are understood; what would be read differently is kUnsupported. `subject` heads error messages.
  static Result<Regex> Compile(std::string_view pattern, std::string_view subject);

  // Appends the non-empty matches in `text` (well-formed UTF-8), left to right. A match that takes more steps than a
  // bound proportional to the text (possible with nested repetition only) ends the search.
  void FindAll(std::string_view text, RegexScratch* scratch, std::vector<TextRange>* matches) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
};

// The pattern as PCRE2 must see it. Exposed for its test.
Result<std::string> TranslatePattern(std::string_view pattern, std::string_view subject);

// `text` with everything that is special in a pattern escaped.
std::string EscapePattern(std::string_view text);

}  // namespace npumoe
