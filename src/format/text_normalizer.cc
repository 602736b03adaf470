// SPDX-License-Identifier: Apache-2.0
#include "format/text_normalizer.h"

#include <algorithm>

#include "base/check.h"
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

Status TextNormalizer::Add(NormalizerStep step, std::string_view subject) {
  if (steps_.size() >= kMaxNormalizerSteps) {
    return MakeError(Code::kUnsupported, "{}: more than {} steps", subject, kMaxNormalizerSteps);
  }
  if (step.kind == NormalizerStep::Kind::kPrepend && step.text.size() > kMaxPrefixBytes) {
    return MakeError(Code::kUnsupported, "{}: a prefix of {} bytes, at most {} are supported", subject,
                     step.text.size(), kMaxPrefixBytes);
  }
  size_t growth = 1;                                        // of this step
  if (step.kind == NormalizerStep::Kind::kNfc) growth = 3;  // UAX 15: at most three times the bytes in UTF-8
  if (step.kind == NormalizerStep::Kind::kReplaceText) growth = step.content.size() / step.text.size() + 1;
  if (step.kind == NormalizerStep::Kind::kReplacePattern) growth = step.content.size() + 1;
  if (growth > kMaxNormalizerGrowth || growth_ * growth > kMaxNormalizerGrowth) {
    return MakeError(Code::kUnsupported, "{}: replacements that can make text more than {} times as long", subject,
                     kMaxNormalizerGrowth);
  }
  growth_ *= growth;
  steps_.push_back(std::move(step));
  return Ok{};
}

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
