// SPDX-License-Identifier: Apache-2.0
#include "format/tokenizer_json_parts.h"

#include <array>
#include <utility>

#include "format/printable.h"
#include "format/unicode.h"

namespace npumoe {
namespace {

constexpr int kMaxSequenceDepth = 8;           // of Sequence in Sequence; real files have one
constexpr size_t kMaxSplitSteps = 64;  // real files have at most five

// The pattern of the ByteLevel pre-tokenizer, GPT-2's.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Error UnknownKind(const JsonField& field, std::string_view kind, std::string_view known) {
  return field.Unsupported("type '{}' is not supported; supported: {}", Printable(kind), known);
}

// A pattern that is either {"String": text} or {"Regex": pattern}.
struct PatternText {
  std::string text;
  bool is_regex = false;
};

Result<PatternText> ReadPattern(const JsonField& field) {
  NM_TRY_VAR(const JsonField pattern, field.At("pattern"));
  for (const bool is_regex : {false, true}) {
    NM_TRY_VAR(const auto text, pattern.Find(is_regex ? "Regex" : "String"));
    if (!text) continue;
    NM_TRY_VAR(std::string value, text->AsString());
    if (value.empty()) return text->Corrupt("is empty");
    return PatternText{std::move(value), is_regex};
  }
  return pattern.Corrupt("has neither 'String' nor 'Regex'");
}

Result<Regex> CompilePattern(const JsonField& field, const PatternText& pattern) {
  return Regex::Compile(pattern.is_regex ? pattern.text : EscapePattern(pattern.text), field.path());
}

// Runs read(item) on the components of a Sequence, which each kind of component lists under its own key.
template <typename Read>
Status ForEachIn(const JsonField& sequence, std::string_view key, int depth, Read read) {
  if (depth >= kMaxSequenceDepth) return sequence.Unsupported("sequences are nested more than {} deep", kMaxSequenceDepth);
  NM_TRY_VAR(const JsonField items, sequence.Array(key));
  for (size_t i = 0; i < items.value().size(); ++i) NM_TRY(read(items.Item(i)));
  return Ok{};
}

Status ReadReplace(const JsonField& field, TextNormalizer* normalizer) {
  NM_TRY_VAR(PatternText pattern, ReadPattern(field));
  NormalizerStep step;
  NM_TRY_VAR(step.content, field.String("content"));
  if (pattern.is_regex) {
    step.kind = NormalizerStep::Kind::kReplacePattern;
    NM_TRY_VAR(Regex regex, CompilePattern(field, pattern));
    step.regex = std::move(regex);
  } else {
    step.kind = NormalizerStep::Kind::kReplaceText;
    step.text = std::move(pattern.text);
  }
  return normalizer->Add(std::move(step), field.path());
}

Status ReadSplit(const JsonField& field, PreTokenizer* pre_tokenizer) {
  constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors = {{
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  }};
  SplitStep step;
  NM_TRY_VAR(const PatternText pattern, ReadPattern(field));
  NM_TRY_VAR(Regex regex, CompilePattern(field, pattern));
  step.regex = std::move(regex);
  NM_TRY_VAR(step.invert, field.BoolOr("invert", false));
  NM_TRY_VAR(const std::string behavior, field.String("behavior"));
  for (const auto& [name, value] : kBehaviors) {
    if (name != behavior) continue;
    step.behavior = value;
    pre_tokenizer->Add(std::move(step));
    return Ok{};
  }
  return field.Unsupported("behavior '{}' is not supported", Printable(behavior));
}

Status ReadByteLevel(const JsonField& field, PreTokenizer* pre_tokenizer, bool* byte_level) {
  NM_TRY_VAR(const bool add_prefix_space, field.BoolOr("add_prefix_space", true));
  NM_TRY_VAR(const bool use_regex, field.BoolOr("use_regex", true));
  if (add_prefix_space) {
    SplitStep step;
    step.kind = SplitStep::Kind::kPrefixSpace;
    pre_tokenizer->Add(std::move(step));
  }
  if (use_regex) {
    SplitStep step;
    NM_TRY_VAR(Regex regex, Regex::Compile(kByteLevelPattern, field.path()));
    step.regex = std::move(regex);
    pre_tokenizer->Add(std::move(step));
  }
  *byte_level = true;
  return Ok{};
}

// prepend_scheme, or what older files wrote for it.
Result<PrependScheme> ReadPrependScheme(const JsonField& field) {
  NM_TRY_VAR(const bool add_prefix_space, field.BoolOr("add_prefix_space", true));
  NM_TRY_VAR(const std::string scheme, field.StringOr("prepend_scheme", add_prefix_space ? "always" : "never"));
  if (scheme == "always") return PrependScheme::kAlways;
  if (scheme == "first") return PrependScheme::kFirst;
  if (scheme == "never") return PrependScheme::kNever;
  return field.Unsupported("prepend_scheme '{}' is not supported", Printable(scheme));
}

Status CheckReplacement(const JsonField& field) {
  NM_TRY_VAR(const std::string replacement, field.StringOr("replacement", kSpaceMark));
  if (replacement != kSpaceMark) return field.Unsupported("replacement '{}', only U+2581 is", Printable(replacement));
  return Ok{};
}

Status ReadMetaspace(const JsonField& field, PreTokenizer* pre_tokenizer) {
  SplitStep step;
  step.kind = SplitStep::Kind::kMetaspace;
  NM_TRY(CheckReplacement(field));
  step.replacement = kSpaceMark;
  NM_TRY_VAR(step.prepend, ReadPrependScheme(field));
  NM_TRY_VAR(step.split, field.BoolOr("split", true));
  pre_tokenizer->Add(std::move(step));
  return Ok{};
}

// One entry of a template: {"SpecialToken": {"id": name}} or {"Sequence": {"id": "A"}}.
Status ReadTemplateItem(const JsonField& item, const JsonField& processor, size_t vocab_size, bool* after_text,
                        std::vector<int32_t>* prefix_ids, std::vector<int32_t>* suffix_ids) {
  NM_TRY_VAR(const auto sequence, item.Find("Sequence"));
  if (sequence) {
    if (*after_text) return item.Unsupported("a template with the text twice");
    *after_text = true;
    return Ok{};
  }
  NM_TRY_VAR(const JsonField token, item.At("SpecialToken"));
  NM_TRY_VAR(const std::string name, token.String("id"));
  NM_TRY_VAR(const JsonField tokens, processor.At("special_tokens"));
  NM_TRY_VAR(const JsonField entry, tokens.At(name));
  NM_TRY_VAR(const JsonField ids, entry.Array("ids"));
  for (size_t i = 0; i < ids.value().size(); ++i) {
    NM_TRY_VAR(const size_t id, ids.Item(i).Index(vocab_size));
    (*after_text ? suffix_ids : prefix_ids)->push_back(static_cast<int32_t>(id));
  }
  return Ok{};
}

Status ReadStrip(const JsonField& field, bool* strips_leading_space) {
  NM_TRY_VAR(const std::string content, field.String("content"));
  NM_TRY_VAR(const JsonField start_field, field.At("start"));
  NM_TRY_VAR(const JsonField stop_field, field.At("stop"));
  NM_TRY_VAR(const size_t start, start_field.Index(SIZE_MAX));
  NM_TRY_VAR(const size_t stop, stop_field.Index(SIZE_MAX));
  if (content != " " || start > 1 || stop != 0) {
    return field.Unsupported("stripping {} of '{}' in front and {} behind; at most one space in front is", start,
                             Printable(content), stop);
  }
  *strips_leading_space = start == 1;
  return Ok{};
}

}  // namespace

Status ReadNormalizer(const JsonField& field, int depth, TextNormalizer* normalizer) {
  NM_TRY_VAR(const std::string kind, field.String("type"));
  if (kind == "Sequence") {
    return ForEachIn(field, "normalizers", depth,
                     [&](const JsonField& item) { return ReadNormalizer(item, depth + 1, normalizer); });
  }
  if (kind == "Replace") return ReadReplace(field, normalizer);
  NormalizerStep step;
  if (kind == "Prepend") {
    step.kind = NormalizerStep::Kind::kPrepend;
    NM_TRY_VAR(step.text, field.String("prepend"));
  } else if (kind == "NFC") {
    step.kind = NormalizerStep::Kind::kNfc;
  } else {
    return UnknownKind(field, kind, "NFC, Prepend, Replace, Sequence");
  }
  return normalizer->Add(std::move(step), field.path());
}

Status ReadPreTokenizer(const JsonField& field, int depth, PreTokenizer* pre_tokenizer, bool* byte_level) {
  NM_TRY_VAR(const std::string kind, field.String("type"));
  if (pre_tokenizer->n_steps() >= kMaxSplitSteps) return field.Unsupported("more than {} steps", kMaxSplitSteps);
  if (*byte_level) return field.Unsupported("'{}' after ByteLevel", Printable(kind));
  if (kind == "Sequence") {
    return ForEachIn(field, "pretokenizers", depth, [&](const JsonField& item) {
      return ReadPreTokenizer(item, depth + 1, pre_tokenizer, byte_level);
    });
  }
  if (kind == "Split") return ReadSplit(field, pre_tokenizer);
  if (kind == "ByteLevel") return ReadByteLevel(field, pre_tokenizer, byte_level);
  if (kind == "Metaspace") return ReadMetaspace(field, pre_tokenizer);
  if (kind == "Digits") {
    SplitStep step;
    step.kind = SplitStep::Kind::kDigits;
    NM_TRY_VAR(step.individual_digits, field.BoolOr("individual_digits", false));
    pre_tokenizer->Add(std::move(step));
    return Ok{};
  }
  return UnknownKind(field, kind, "ByteLevel, Digits, Metaspace, Sequence, Split");
}

Status ReadPostProcessor(const JsonField& field, int depth, size_t vocab_size, std::vector<int32_t>* prefix_ids,
                         std::vector<int32_t>* suffix_ids) {
  NM_TRY_VAR(const std::string kind, field.String("type"));
  if (kind == "Sequence") {
    return ForEachIn(field, "processors", depth, [&](const JsonField& item) {
      return ReadPostProcessor(item, depth + 1, vocab_size, prefix_ids, suffix_ids);
    });
  }
  if (kind == "ByteLevel") return Ok{};  // changes offsets only
  if (kind != "TemplateProcessing") return UnknownKind(field, kind, "ByteLevel, Sequence, TemplateProcessing");
  bool after_text = false;
  NM_TRY_VAR(const JsonField single, field.Array("single"));
  for (size_t i = 0; i < single.value().size(); ++i) {
    NM_TRY(ReadTemplateItem(single.Item(i), field, vocab_size, &after_text, prefix_ids, suffix_ids));
  }
  if (!after_text) return single.Corrupt("the text does not occur in the template");
  return Ok{};
}

Status ReadDecoder(const JsonField& field, int depth, bool byte_level, bool* strips_leading_space) {
  const Result<std::string> type = field.String("type");
  if (!type.ok()) return type.error();
  const std::string& kind = *type;
  if (kind == "Sequence") {
    return ForEachIn(field, "decoders", depth, [&](const JsonField& item) {
      return ReadDecoder(item, depth + 1, byte_level, strips_leading_space);
    });
  }
  if (byte_level) {
    if (kind == "ByteLevel") return Ok{};
    return field.Unsupported("type '{}' with a ByteLevel pre_tokenizer", Printable(kind));
  }
  if (kind == "ByteFallback" || kind == "Fuse") return Ok{};
  if (kind == "Strip") return ReadStrip(field, strips_leading_space);
  if (kind == "Replace") {
    NM_TRY_VAR(const PatternText pattern, ReadPattern(field));
    NM_TRY_VAR(const std::string content, field.String("content"));
    if (pattern.is_regex || pattern.text != kSpaceMark || content != " ") {
      return field.Unsupported("replacing '{}' by '{}'; only U+2581 by a space is", Printable(pattern.text),
                               Printable(content));
    }
    return Ok{};
  }
  if (kind == "Metaspace") {
    NM_TRY(CheckReplacement(field));
    NM_TRY_VAR(const PrependScheme scheme, ReadPrependScheme(field));
    *strips_leading_space = scheme != PrependScheme::kNever;
    return Ok{};
  }
  return UnknownKind(field, kind, "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip");
}

}  // namespace npumoe
