// SPDX-License-Identifier: Apache-2.0
// A tokenizer from the tokenizer.* keys of a GGUF file.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "format/printable.h"
#include "format/tokenizer_impl.h"

namespace npumoe {
namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";

// Typed look-ups; errors name the file and the key.
class Reader {
 public:
  Reader(const GgufMetadata& metadata, std::string_view name) : metadata_(metadata), name_(name) {}

  template <typename... Args>
  Error Corrupt(std::string_view key, fmt::format_string<Args...> format, Args&&... args) const {
    return MakeError(Code::kCorruptFile, "{}: {}: {}", name_, key, fmt::format(format, std::forward<Args>(args)...));
  }

  const GgufValue* Find(const std::string& key) const {
    const auto it = metadata_.find(key);
    return it == metadata_.end() ? nullptr : &it->second;
  }

  // Absent: nullopt.
  Result<std::optional<std::string_view>> String(const std::string& key) const {
    const GgufValue* const value = Find(key);
    if (value == nullptr) return std::optional<std::string_view>();
    if (const auto* text = std::get_if<std::string_view>(value)) return std::optional(*text);
    return Corrupt(key, "is no string");
  }

  Result<std::optional<bool>> Bool(const std::string& key) const {
    const GgufValue* const value = Find(key);
    if (value == nullptr) return std::optional<bool>();
    if (const auto* flag = std::get_if<bool>(value)) return std::optional(*flag);
    return Corrupt(key, "is no bool");
  }

  // A token id; nullopt if absent or -1, which some files write for "none".
  Result<std::optional<int32_t>> Id(const std::string& key, size_t vocab_size) const {
    const GgufValue* const value = Find(key);
    if (value == nullptr) return std::optional<int32_t>();
    uint64_t id = 0;
    if (const auto* u = std::get_if<uint64_t>(value)) {
      id = *u;
    } else if (const auto* i = std::get_if<int64_t>(value)) {
      id = static_cast<uint64_t>(*i);
    } else {
      return Corrupt(key, "is no integer");
    }
    if (id == UINT32_MAX || id == UINT64_MAX) return std::optional<int32_t>();
    if (id >= vocab_size) return Corrupt(key, "token id {}, but the vocabulary has {} tokens", id, vocab_size);
    return std::optional(static_cast<int32_t>(id));
  }

  // Absent: nullptr.
  template <typename T>
  Result<const std::vector<T>*> Array(const std::string& key, std::string_view type) const {
    const GgufValue* const value = Find(key);
    if (value == nullptr) return static_cast<const std::vector<T>*>(nullptr);
    if (const auto* array = std::get_if<GgufArray>(value)) {
      if (const auto* items = std::get_if<std::vector<T>>(array)) return items;
    }
    return Corrupt(key, "is no array of {}", type);
  }

  std::string_view name() const { return name_; }

 private:
  const GgufMetadata& metadata_;
  std::string_view name_;
};

std::string Key(std::string_view rest) { return std::string(kPrefix).append(rest); }

Status ReadTokens(const Reader& reader, Vocabulary* vocabulary) {
  NM_TRY_VAR(const auto* tokens, reader.Array<std::string_view>(Key("tokens"), "strings"));
  if (tokens == nullptr) return reader.Corrupt(Key("tokens"), "missing");
  if (tokens->empty()) return reader.Corrupt(Key("tokens"), "no tokens");
  if (tokens->size() > INT32_MAX) return reader.Corrupt(Key("tokens"), "{} tokens, ids have 31 bits", tokens->size());
  vocabulary->texts.Reserve(tokens->size(), tokens->size() * 8);
  for (const std::string_view token : *tokens) vocabulary->texts.Add(token);
  vocabulary->kinds.assign(tokens->size(), TokenKind::kNormal);
  return Ok{};
}

Status ReadKinds(const Reader& reader, Vocabulary* vocabulary) {
  const std::string key = Key("token_type");
  const GgufValue* const value = reader.Find(key);
  if (value == nullptr) return Ok{};
  const auto* const array = std::get_if<GgufArray>(value);
  const auto* const is_signed = array != nullptr ? std::get_if<std::vector<int64_t>>(array) : nullptr;
  const auto* const is_unsigned = array != nullptr ? std::get_if<std::vector<uint64_t>>(array) : nullptr;
  if (is_signed == nullptr && is_unsigned == nullptr) return reader.Corrupt(key, "is no array of integers");
  const size_t n = is_signed != nullptr ? is_signed->size() : is_unsigned->size();
  if (n != vocabulary->size()) return reader.Corrupt(key, "{} entries for {} tokens", n, vocabulary->size());
  for (size_t i = 0; i < n; ++i) {
    const uint64_t kind = is_signed != nullptr ? static_cast<uint64_t>((*is_signed)[i]) : (*is_unsigned)[i];
    if (kind > 6) return reader.Corrupt(key, "token {} has type {}, wanted 1 to 6", i, static_cast<int64_t>(kind));
    if (kind == 0) continue;  // "undefined": an ordinary token
    vocabulary->kinds[i] = static_cast<TokenKind>(kind);
    if (vocabulary->kinds[i] == TokenKind::kByte && !ByteOfName(vocabulary->texts[i])) {
      return reader.Corrupt(key, "token {} is a byte, but its text '{}' is not of the form <0x0A>", i,
                            Printable(vocabulary->texts[i]));
    }
  }
  return Ok{};
}

Result<std::vector<BpeModel::MergeText>> ReadMerges(const Reader& reader) {
  const std::string key = Key("merges");
  NM_TRY_VAR(const auto* merges, reader.Array<std::string_view>(key, "strings"));
  if (merges == nullptr) return reader.Corrupt(key, "missing; without merges every byte would be a token");
  if (merges->empty()) return reader.Corrupt(key, "no merges; without them every byte would be a token");
  if (merges->size() >= INT32_MAX) return reader.Corrupt(key, "{} merges, ranks have 31 bits", merges->size());
  std::vector<BpeModel::MergeText> out;
  out.reserve(merges->size());
  for (const std::string_view merge : *merges) {
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos) {
      return reader.Corrupt(key, "merge {}: '{}' has no space between two texts", out.size(), Printable(merge));
    }
    out.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  return out;
}

Status LoadBpe(const Reader& reader, std::string_view pre_override, TokenizerData* data) {
  const std::string key = Key("pre");
  NM_TRY_VAR(const auto stored, reader.String(key));
  std::string_view pre = pre_override.empty() ? stored.value_or("") : pre_override;
  if (pre.empty()) {
    pre = "default";
    data->warnings.push_back(fmt::format(
        "{}: {}: missing; text is split by the rule 'default', which may not be the model's", reader.name(), key));
  }
  const PreRule* const rule = FindPreRule(pre);
  if (rule == nullptr) {
    return MakeError(Code::kUnsupported, "{}: {}: unknown pre-tokenizer '{}', known: {} (a known one can be forced)",
                     reader.name(), key, Printable(pre), fmt::join(PreRuleNames(), ", "));
  }
  if (rule->nfc) NM_TRY(data->normalizer.Add({NormalizerStep::Kind::kNfc, {}, {}, {}}, reader.name()));
  for (const std::string_view pattern : rule->patterns) {
    NM_TRY_VAR(Regex regex, Regex::Compile(pattern, reader.name()));
    SplitStep step;
    step.regex = std::move(regex);
    data->pre_tokenizer.Add(std::move(step));
  }
  NM_TRY_VAR(const auto merges, ReadMerges(reader));
  BpeModel::Options options;
  options.byte_level = true;
  options.ignore_merges = rule->ignore_merges;
  options.unk = data->special.unk;
  NM_TRY_VAR(data->model, BpeModel::FromMerges(data->vocabulary, merges, options, false, reader.name()));
  if (data->model.n_missing_bytes() > 0 && !options.unk) {
    data->warnings.push_back(fmt::format("{}: {} of 256 bytes have no token; text with them is lost", reader.name(),
                                         data->model.n_missing_bytes()));
  }
  data->special.add_bos = rule->add_bos;
  data->description = fmt::format("BPE ({}), {} tokens", pre, data->vocabulary.size());
  return Ok{};
}

Status LoadSpm(const Reader& reader, TokenizerData* data) {
  const std::string key = Key("scores");
  NM_TRY_VAR(const auto* scores, reader.Array<double>(key, "floats"));
  if (scores == nullptr) return reader.Corrupt(key, "missing");
  if (scores->size() != data->vocabulary.size()) {
    return reader.Corrupt(key, "{} entries for {} tokens", scores->size(), data->vocabulary.size());
  }
  for (size_t i = 0; i < scores->size(); ++i) {
    if (std::isnan((*scores)[i])) return reader.Corrupt(key, "the score of token {} is not a number", i);
  }
  NM_TRY_VAR(const auto prefix, reader.Bool(Key("add_space_prefix")));
  if (prefix.value_or(true)) {
    NM_TRY(data->normalizer.Add({NormalizerStep::Kind::kPrepend, " ", {}, {}}, reader.name()));
    data->strips_leading_space = true;
  }
  NM_TRY(data->normalizer.Add({NormalizerStep::Kind::kReplaceText, " ", std::string(kSpaceMark), {}}, reader.name()));
  BpeModel::Options options;
  options.byte_fallback = true;
  options.unk = data->special.unk;
  NM_TRY_VAR(data->model, BpeModel::FromScores(data->vocabulary, *scores, options, reader.name()));
  data->special.add_bos = true;
  data->description = fmt::format("SentencePiece BPE, {} tokens", data->vocabulary.size());
  return Ok{};
}

// GGUF does not store which added tokens swallow the whitespace after them. Phi-3's (Phi-3.5-MoE's too) do, all but
// three, in its tokenizer.json; its vocabulary is told by its markers.
bool IsPhi3(const Vocabulary& vocabulary) {
  const auto is_control = [&](std::string_view text) {
    const auto id = vocabulary.Find(text);
    return id && vocabulary.kinds[static_cast<size_t>(*id)] == TokenKind::kControl;
  };
  return is_control("<|assistant|>") && is_control("<|end|>") && is_control("<|placeholder1|>");
}

Status AddAddedTokens(const Reader& reader, bool is_spm, TokenizerData* data) {
  const Vocabulary& vocabulary = data->vocabulary;
  const bool is_phi3 = is_spm && IsPhi3(vocabulary);
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const TokenKind kind = vocabulary.kinds[i];
    const bool is_control = kind == TokenKind::kControl || data->special.unk == id;
    if ((!is_control && kind != TokenKind::kUserDefined) || vocabulary.texts[i].empty()) continue;
    AddedToken token;
    token.text = vocabulary.texts[i];
    token.id = id;
    token.is_control = is_control;
    token.rstrip = is_phi3 && token.text != "<unk>" && token.text != "<s>" && token.text != "<|endoftext|>";
    NM_TRY(data->added.Add(std::move(token), reader.name()));
  }
  return Ok{};
}

Status ReadSpecial(const Reader& reader, bool is_spm, TokenizerData* data) {
  SpecialTokens& special = data->special;
  const Vocabulary& vocabulary = data->vocabulary;
  const size_t n = vocabulary.size();
  NM_TRY_VAR(special.bos, reader.Id(Key("bos_token_id"), n));
  NM_TRY_VAR(special.eos, reader.Id(Key("eos_token_id"), n));
  NM_TRY_VAR(special.unk, reader.Id(Key("unknown_token_id"), n));
  NM_TRY_VAR(special.pad, reader.Id(Key("padding_token_id"), n));
  for (const std::string_view key : {"eot_token_id", "eom_token_id"}) {
    NM_TRY_VAR(const auto id, reader.Id(Key(key), n));
    if (id) special.eog.push_back(*id);
  }
  if (!is_spm) return Ok{};
  // SentencePiece's own names, for files that do not give the ids.
  const auto by_name = [&](std::string_view key, std::string_view text, std::optional<int32_t>* id) {
    if (!*id && reader.Find(Key(key)) == nullptr) *id = vocabulary.Find(text);
  };
  by_name("bos_token_id", "<s>", &special.bos);
  by_name("eos_token_id", "</s>", &special.eos);
  by_name("unknown_token_id", "<unk>", &special.unk);
  return Ok{};
}

// What the file says of BOS and EOS, over the defaults that the loaders have set.
Status ReadAffixes(const Reader& reader, TokenizerData* data) {
  SpecialTokens& special = data->special;
  NM_TRY_VAR(const auto add_bos, reader.Bool(Key("add_bos_token")));
  NM_TRY_VAR(const auto add_eos, reader.Bool(Key("add_eos_token")));
  special.add_bos = add_bos.value_or(special.add_bos) && special.bos;
  special.add_eos = add_eos.value_or(false) && special.eos;
  if (add_bos.value_or(false) && !special.bos) {
    data->warnings.push_back(fmt::format("{}: add_bos_token is set, but there is no bos_token_id", reader.name()));
  }
  if (special.add_bos) data->prefix_ids.push_back(*special.bos);
  if (special.add_eos) data->suffix_ids.push_back(*special.eos);
  return Ok{};
}

}  // namespace

Status LoadGgufTokenizer(const GgufMetadata& metadata, std::string_view name, std::string_view pre_override,
                         TokenizerData* data) {
  const Reader reader(metadata, name);
  NM_TRY_VAR(const auto model, reader.String(Key("model")));
  if (!model) return MakeError(Code::kNotFound, "{}: {}: missing; the file has no tokenizer", name, Key("model"));
  const bool is_spm = *model == "llama";
  if (!is_spm && *model != "gpt2") {
    return MakeError(Code::kUnsupported, "{}: {}: '{}', supported: gpt2, llama", name, Key("model"), Printable(*model));
  }
  NM_TRY(ReadTokens(reader, &data->vocabulary));
  NM_TRY(ReadKinds(reader, &data->vocabulary));
  NM_TRY(data->vocabulary.BuildIndex(name));
  NM_TRY(ReadSpecial(reader, is_spm, data));
  NM_TRY(is_spm ? LoadSpm(reader, data) : LoadBpe(reader, pre_override, data));
  NM_TRY(ReadAffixes(reader, data));
  NM_TRY(AddAddedTokens(reader, is_spm, data));
  MakePieces(!is_spm, is_spm, data);
  FinishEog(data);
  NM_TRY_VAR(const auto chat_template, reader.String("tokenizer.chat_template"));
  data->chat_template = chat_template.value_or("");
  return Ok{};
}

}  // namespace npumoe
