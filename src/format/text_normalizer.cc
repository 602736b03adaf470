// SPDX-License-Identifier: Apache-2.0
#include "format/text_normalizer.h"

#include <algorithm>

#include "format/unicode.h"

namespace npumoe {
namespace {

std::string ReplaceText(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  for (size_t pos = 0; pos < text.size();) {
    const size_t found = std::min(text.find(from, pos), text.size());
    out.append(text.substr(pos, found - pos));
    if (found < text.size()) out.append(to);
    pos = found + from.size();
  }
  return out;
}

// Patterns see the well-formed stretches only.
std::string ReplacePattern(std::string_view text, const Regex& regex, std::string_view to) {
  std::string out;
  RegexScratch scratch;
  std::vector<TextRange> matches;
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    const std::string_view stretch = text.substr(0, valid);
    matches.clear();
    regex.FindAll(stretch, &scratch, &matches);
    size_t pos = 0;
    for (const TextRange& match : matches) {
      out.append(stretch.substr(pos, match.begin - pos)).append(to);
      pos = match.end;
    }
    out.append(stretch.substr(pos));
    text.remove_prefix(valid);
    if (text.empty()) break;
    out.push_back(text.front());
    text.remove_prefix(1);
  }
  return out;
}

}  // namespace

std::string TextNormalizer::Apply(std::string_view text) const {
  std::string out(text);
  for (const NormalizerStep& step : steps_) {
    if (out.empty()) break;
    switch (step.kind) {
      case NormalizerStep::Kind::kNfc:
        out = Nfc(out);
        break;
      case NormalizerStep::Kind::kPrepend:
        out.insert(0, step.text);
        break;
      case NormalizerStep::Kind::kReplaceText:
        out = ReplaceText(out, step.text, step.content);
        break;
      case NormalizerStep::Kind::kReplacePattern:
        out = ReplacePattern(out, *step.regex, step.content);
        break;
    }
  }
  return out;
}

}  // namespace npumoe
