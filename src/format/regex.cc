// SPDX-License-Identifier: Apache-2.0
#include "format/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "format/printable.h"
#include "format/unicode.h"

namespace npumoe {
namespace {

// Steps of one match: the patterns of real tokenizers need at most a few per byte. assumed: 64 leaves ample room.
constexpr uint64_t kStepsPerByte = 64;
constexpr uint64_t kMinSteps = 100'000;
// Backtracking frames live on the heap. Real patterns need a few; assumed: enough for a grouped repeat over 1 MB.
constexpr uint32_t kHeapLimitKibibytes = 256 * 1024;
constexpr size_t kMaxPatternBytes = 65'536;  // the longest known (DeepSeek's) has about 1,300

// White_Space, for inside a class. PCRE2's own \s also takes U+180E, which left that property in Unicode 6.3.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kWord = R"(\p{L}\p{M}\p{N}\p{Pc})";

bool IsHexDigit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// Rewrites one pattern; see TranslatePattern.
class Translator {
 public:
  Translator(std::string_view pattern, std::string_view subject) : pattern_(pattern), subject_(subject) {}

  Result<std::string> Run() {
    while (pos_ < pattern_.size()) {
      const char c = pattern_[pos_];
      if (c == '\\') {
        NM_TRY(Escape());
      } else if (in_class_) {
        NM_TRY(InClass(c));
      } else if (c == '[') {
        OpenClass();
      } else if (c == '}' && pattern_.substr(pos_ + 1).starts_with('+')) {
        return Unsupported("a '+' after an interval");  // Oniguruma repeats the interval, PCRE2 makes it possessive
      } else {
        Copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  Error Unsupported(std::string_view what) const {
    return MakeError(Code::kUnsupported, "{}: {} at byte {} of pattern '{}' is not supported", subject_, what, pos_,
                     Printable(pattern_));
  }
  void Copy(size_t n) {
    out_.append(pattern_.substr(pos_, n));
    pos_ += n;
  }
  void OpenClass() {
    in_class_ = true;
    Copy(1);
    if (pos_ < pattern_.size() && pattern_[pos_] == '^') Copy(1);
    if (pos_ < pattern_.size() && pattern_[pos_] == ']') Copy(1);  // a leading ']' is literal
  }
  Status InClass(char c) {
    if (c == '[' && pattern_.substr(pos_, 2) != "[:") return Unsupported("a set inside a set");
    if (pattern_.substr(pos_, 2) == "&&") return Unsupported("an intersection of sets");
    if (pattern_.substr(pos_, 2) == "[:") {
      const size_t end = pattern_.find(":]", pos_ + 2);
      if (end == std::string_view::npos) return Unsupported("a set inside a set");
      Copy(end + 2 - pos_);
      return Ok{};
    }
    if (c == ']') in_class_ = false;
    Copy(1);
    return Ok{};
  }
  Status Escape() {
    const char next = pos_ + 1 < pattern_.size() ? pattern_[pos_ + 1] : '\0';
    switch (next) {
      case 's':
        return Class(kSpaces, false);
      case 'S':
        return Class(kSpaces, true);
      case 'w':
        return Class(kWord, false);
      case 'W':
        return Class(kWord, true);
      case 'u':
        return CodeUnit();
      case 'h':
      case 'H':
      case 'R':
      case 'X':
      case 'K':
      case 'C':
      case 'N':
      case 'O':
      case 'y':
      case 'Y':
      case 'M':
        return Unsupported(fmt::format("'\\{}'", next));
      default:
        Copy(EscapeLength());
        return Ok{};
    }
  }
  // Of what PCRE2 reads alike: \p{L}, \x{41} or a backslash and one character.
  size_t EscapeLength() const {
    const std::string_view escape = pattern_.substr(pos_);
    const bool has_braces = escape.starts_with("\\p{") || escape.starts_with("\\P{") || escape.starts_with("\\x{");
    const size_t end = has_braces ? escape.find('}') : std::string_view::npos;
    return end != std::string_view::npos ? end + 1 : std::min<size_t>(2, escape.size());
  }
  Status Class(std::string_view members, bool negated) {
    if (in_class_ && negated) return Unsupported("a negated class inside a set");
    if (in_class_) {
      out_.append(members);
    } else {
      out_.append(negated ? "[^" : "[").append(members).append("]");
    }
    pos_ += 2;
    return Ok{};
  }
  // \uHHHH of Oniguruma is \x{HHHH} of PCRE2.
  Status CodeUnit() {
    const std::string_view digits = pattern_.substr(std::min(pos_ + 2, pattern_.size()), 4);
    if (digits.size() != 4 || !std::all_of(digits.begin(), digits.end(), IsHexDigit)) {
      return Unsupported("'\\u' without four hexadecimal digits");
    }
    out_.append("\\x{").append(digits).append("}");
    pos_ += 6;
    return Ok{};
  }

  std::string_view pattern_;
  std::string_view subject_;
  size_t pos_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

void RegexScratch::FreeData::operator()(pcre2_real_match_data_8* data) const { pcre2_match_data_free(data); }
void RegexScratch::FreeContext::operator()(pcre2_real_match_context_8* context) const {
  pcre2_match_context_free(context);
}
void Regex::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

RegexScratch::RegexScratch()
    : data_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)) {
  NM_CHECK(data_ != nullptr && context_ != nullptr);
  pcre2_set_heap_limit(context_.get(), kHeapLimitKibibytes);
}

Result<std::string> TranslatePattern(std::string_view pattern, std::string_view subject) {
  return Translator(pattern, subject).Run();
}

std::string EscapePattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool is_special = std::string_view("\\^$.|?*+()[]{}-#&~ ").find(c) != std::string_view::npos;
    if (is_special) out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

Result<Regex> Regex::Compile(std::string_view pattern, std::string_view subject) {
  if (pattern.size() > kMaxPatternBytes) {
    return MakeError(Code::kUnsupported, "{}: pattern of {} bytes, at most {} are supported", subject, pattern.size(),
                     kMaxPatternBytes);
  }
  NM_TRY_VAR(const std::string translated, TranslatePattern(pattern, subject));
  const std::unique_ptr<pcre2_compile_context_8, void (*)(pcre2_compile_context_8*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  NM_CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  // In Ruby syntax '^' and '$' always mean lines.
  Regex regex;
  regex.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                                  context.get()));
  if (regex.code_ == nullptr) {
    unsigned char text[256] = {};
    pcre2_get_error_message(error, text, sizeof(text));
    return MakeError(Code::kUnsupported, "{}: pattern '{}': {} at byte {}", subject, Printable(translated),
                     reinterpret_cast<const char*>(text), offset);
  }
  return regex;
}

void Regex::FindAll(std::string_view text, RegexScratch* scratch, std::vector<TextRange>* matches) const {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const uint64_t steps = kMinSteps + kStepsPerByte * text.size();
  pcre2_set_match_limit(scratch->context_.get(), static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
  const PCRE2_SIZE* const found = pcre2_get_ovector_pointer(scratch->data_.get());
  for (size_t pos = 0; pos < text.size();) {
    // The caller vouches for the text; checking it again at every match would be quadratic.
    const int status = pcre2_match(code_.get(), subject, text.size(), pos, PCRE2_NO_UTF_CHECK, scratch->data_.get(),
                                   scratch->context_.get());
    if (status < 0) return;  // no match, or the bound was reached
    if (found[1] > found[0] && found[0] >= pos) {
      matches->push_back({found[0], found[1]});
      pos = found[1];
    } else {
      pos = std::max(pos, found[1]);
      if (pos < text.size()) pos += DecodeUtf8(text, pos).length;
    }
  }
}

}  // namespace npumoe
