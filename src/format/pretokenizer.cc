// SPDX-License-Identifier: Apache-2.0
#include "format/pretokenizer.h"

#include <algorithm>

#include "format/unicode.h"

namespace npumoe {
namespace {

// A stretch between cuts, and whether the pattern matched it.
struct Segment {
  TextRange range;
  bool is_match = false;
};

bool IsMalformed(std::string_view piece) { return piece.size() == 1 && static_cast<unsigned char>(piece[0]) >= 0x80; }

// Alternating matches and gaps that cover `piece`.
std::vector<Segment> Segments(TextRange piece, std::span<const TextRange> matches, bool invert) {
  std::vector<Segment> out;
  size_t pos = 0;
  const size_t size = piece.end - piece.begin;
  const auto add = [&](size_t begin, size_t end, bool is_match) {
    if (end > begin) out.push_back({{piece.begin + begin, piece.begin + end}, is_match != invert});
  };
  for (const TextRange& match : matches) {
    add(pos, match.begin, false);
    add(match.begin, match.end, true);
    pos = match.end;
  }
  add(pos, size, false);
  return out;
}

// Joins segments by `behavior` and appends the pieces that stay.
void AppendPieces(std::span<const Segment> segments, SplitBehavior behavior, std::vector<TextRange>* out) {
  const size_t first = out->size();
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    const bool has_previous = out->size() > first;
    bool join = false;  // with the piece before
    switch (behavior) {
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kRemoved:
        if (segment.is_match) continue;
        break;
      case SplitBehavior::kMergedWithPrevious:
        join = segment.is_match && has_previous && !segments[i - 1].is_match;
        break;
      case SplitBehavior::kMergedWithNext:
        join = !segment.is_match && has_previous && segments[i - 1].is_match;
        break;
      case SplitBehavior::kContiguous:
        join = has_previous && segments[i - 1].is_match == segment.is_match;
        break;
    }
    if (join) {
      out->back().end = segment.range.end;
    } else {
      out->push_back(segment.range);
    }
  }
}

void FindDigits(std::string_view piece, bool individual, std::vector<TextRange>* matches) {
  for (size_t pos = 0; pos < piece.size();) {
    const Utf8Char c = DecodeUtf8(piece, pos);
    if (IsNumeric(c.code)) {
      if (!individual && !matches->empty() && matches->back().end == pos) {
        matches->back().end = pos + c.length;
      } else {
        matches->push_back({pos, pos + c.length});
      }
    }
    pos += c.length;
  }
}

// Cuts before every `mark`.
void CutBefore(std::string_view text, TextRange piece, std::string_view mark, std::vector<TextRange>* out) {
  size_t begin = piece.begin;
  while (begin < piece.end) {
    size_t next = text.substr(0, piece.end).find(mark, begin + 1);
    if (next == std::string_view::npos) next = piece.end;
    out->push_back({begin, next});
    begin = next;
  }
}

// Well-formed stretches and single malformed bytes.
void CutMalformed(std::string_view text, std::vector<TextRange>* out) {
  for (size_t pos = 0; pos < text.size();) {
    const size_t valid = ValidUtf8Prefix(text.substr(pos));
    const size_t end = pos + std::max<size_t>(valid, 1);
    out->push_back({pos, end});
    pos = end;
  }
}

void RunSplit(const SplitStep& step, SplitScratch* scratch) {
  scratch->next.clear();
  for (const TextRange& piece : scratch->pieces) {
    const std::string_view text = scratch->text.substr(piece.begin, piece.end - piece.begin);
    if (IsMalformed(text)) {
      scratch->next.push_back(piece);
      continue;
    }
    scratch->matches.clear();
    if (step.kind == SplitStep::Kind::kRegex) {
      step.regex->FindAll(text, &scratch->regex, &scratch->matches);
    } else {
      FindDigits(text, step.individual_digits, &scratch->matches);
    }
    AppendPieces(Segments(piece, scratch->matches, step.invert), step.behavior, &scratch->next);
  }
  scratch->pieces.swap(scratch->next);
}

// Steps that change the text: a leading space or mark, and marks for spaces.
void RunRewrite(const SplitStep& step, bool is_first, SplitScratch* scratch) {
  const bool is_metaspace = step.kind == SplitStep::Kind::kMetaspace;
  scratch->rewritten.clear();
  scratch->next.clear();
  for (const TextRange& piece : scratch->pieces) {
    const std::string_view text = scratch->text.substr(piece.begin, piece.end - piece.begin);
    const size_t begin = scratch->rewritten.size();
    if (!is_metaspace) {
      if (!IsMalformed(text) && !text.starts_with(' ')) scratch->rewritten.push_back(' ');
      scratch->rewritten.append(text);
      scratch->next.push_back({begin, scratch->rewritten.size()});
      continue;
    }
    const bool may_prepend = step.prepend == PrependScheme::kAlways ||
                             (step.prepend == PrependScheme::kFirst && is_first && piece.begin == 0);
    if (may_prepend && !IsMalformed(text) && !text.starts_with(' ') && !text.starts_with(step.replacement)) {
      scratch->rewritten.append(step.replacement);
    }
    for (const char c : text) {
      if (c == ' ')
        scratch->rewritten.append(step.replacement);
      else
        scratch->rewritten.push_back(c);
    }
    const TextRange whole{begin, scratch->rewritten.size()};
    if (step.split)
      CutBefore(scratch->rewritten, whole, step.replacement, &scratch->next);
    else
      scratch->next.push_back(whole);
  }
  scratch->current.swap(scratch->rewritten);
  scratch->text = scratch->current;
  scratch->pieces.swap(scratch->next);
}

}  // namespace

void PreTokenizer::Split(std::string_view text, bool is_first, SplitScratch* scratch) const {
  scratch->text = text;
  scratch->pieces.clear();
  CutMalformed(text, &scratch->pieces);
  for (const SplitStep& step : steps_) {
    if (step.kind == SplitStep::Kind::kRegex || step.kind == SplitStep::Kind::kDigits) {
      RunSplit(step, scratch);
    } else {
      RunRewrite(step, is_first, scratch);
    }
  }
}

}  // namespace npumoe
