// SPDX-License-Identifier: Apache-2.0
// A tokenizer from the files of a Hugging Face folder: tokenizer.json, tokenizer_config.json, generation_config.json.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "format/printable.h"
#include "format/tokenizer_document.h"
#include "format/tokenizer_impl.h"
#include "format/tokenizer_json_parts.h"

namespace npumoe {
namespace {

// Ids may leave gaps, but a table over them must stay in proportion to the file.
// assumed: no real vocabulary is three quarters gaps.
constexpr size_t kMaxIdsPerToken = 4;
constexpr size_t kMaxExtraIds = 1024;

// What the model's part says, before it is built.
struct ModelPart {
  BpeModel::Options options;
  std::vector<std::string_view> texts;  // by id; borrowed from the document and the added tokens
  std::vector<bool> is_used;            // by id
  std::optional<std::string> unk_token;
};

Status CheckAbsent(const JsonField& model, std::string_view key) {
  NM_TRY_VAR(const auto field, model.Find(key));
  if (!field || field->value() == "" || field->value() == 0) return Ok{};
  return field->Unsupported("is set, which is not supported");
}

Status ReadModelOptions(const JsonField& model, ModelPart* part) {
  NM_TRY_VAR(const std::string kind, model.StringOr("type", "BPE"));
  if (kind != "BPE") return model.Unsupported("type '{}' is not supported; supported: BPE", Printable(kind));
  for (const char* const key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    NM_TRY(CheckAbsent(model, key));
  }
  NM_TRY_VAR(part->options.byte_fallback, model.BoolOr("byte_fallback", false));
  NM_TRY_VAR(part->options.fuse_unk, model.BoolOr("fuse_unk", false));
  NM_TRY_VAR(part->options.ignore_merges, model.BoolOr("ignore_merges", false));
  NM_TRY_VAR(const auto unk, model.Find("unk_token"));
  if (unk) {
    NM_TRY_VAR(part->unk_token, unk->AsString());
  }
  return Ok{};
}

Status Place(const JsonField& field, std::string_view text, size_t id, ModelPart* part) {
  if (id >= part->texts.size()) {
    part->texts.resize(id + 1);
    part->is_used.resize(id + 1);
  }
  if (part->is_used[id]) {
    return field.Corrupt("'{}' has id {}, which '{}' has too", Printable(text), id, Printable(part->texts[id]));
  }
  part->texts[id] = text;
  part->is_used[id] = true;
  return Ok{};
}

Status ReadVocab(const JsonField& root, const TokenizerDocument& document, size_t id_limit, ModelPart* part) {
  const JsonField vocab(&root.value(), root.path() + "model.vocab");
  const size_t n = document.vocab_texts.size();
  part->texts.reserve(n);
  part->is_used.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    const std::string_view text = document.vocab_texts[i];
    const uint64_t id = document.vocab_ids[i];
    if (id >= id_limit) return vocab.Corrupt("'{}' has id {}, limit {}", Printable(text), id, id_limit - 1);
    NM_TRY(Place(vocab, text, id, part));
  }
  return Ok{};
}

Result<AddedToken> ReadAddedToken(const JsonField& field, size_t id_limit, bool* normalized) {
  AddedToken token;
  NM_TRY_VAR(const JsonField id_field, field.At("id"));
  NM_TRY_VAR(const size_t id, id_field.Index(id_limit));
  token.id = static_cast<int32_t>(id);
  NM_TRY_VAR(token.text, field.String("content"));
  NM_TRY_VAR(token.single_word, field.BoolOr("single_word", false));
  NM_TRY_VAR(token.lstrip, field.BoolOr("lstrip", false));
  NM_TRY_VAR(token.rstrip, field.BoolOr("rstrip", false));
  NM_TRY_VAR(token.is_control, field.BoolOr("special", false));
  NM_TRY_VAR(*normalized, field.BoolOr("normalized", !token.is_control));
  return token;
}

struct AddedPart {
  std::vector<AddedToken> tokens;
  std::vector<bool> normalized;  // beside tokens
};

Status ReadAddedTokens(const JsonField& root, size_t id_limit, AddedPart* added) {
  NM_TRY_VAR(const auto list, root.Find("added_tokens"));
  if (!list) return Ok{};
  if (!list->value().is_array()) return list->Corrupt("is no array");
  for (size_t i = 0; i < list->value().size(); ++i) {
    bool normalized = false;
    NM_TRY_VAR(AddedToken token, ReadAddedToken(list->Item(i), id_limit, &normalized));
    added->tokens.push_back(std::move(token));
    added->normalized.push_back(normalized);
  }
  return Ok{};
}

// Puts added tokens that the model's vocabulary lacks at their own ids, and checks the others against it.
Status PlaceAddedTokens(const JsonField& root, const AddedPart& added, ModelPart* part) {
  const JsonField field(&root.value(), root.path() + "added_tokens");
  for (const AddedToken& token : added.tokens) {
    const auto id = static_cast<size_t>(token.id);
    const bool is_there = id < part->is_used.size() && part->is_used[id] && part->texts[id] == token.text;
    if (!is_there) NM_TRY(Place(field, token.text, id, part));
  }
  return Ok{};
}

Status BuildVocabulary(const JsonField& root, const AddedPart& added, const ModelPart& part, TokenizerData* data) {
  Vocabulary& vocabulary = data->vocabulary;
  vocabulary.texts.Reserve(part.texts.size(), part.texts.size() * 8);
  for (const std::string_view text : part.texts) vocabulary.texts.Add(text);
  vocabulary.kinds.assign(part.texts.size(), TokenKind::kNormal);
  for (size_t id = 0; id < part.texts.size(); ++id) {
    if (!part.is_used[id]) vocabulary.kinds[id] = TokenKind::kUnused;
    if (part.options.byte_fallback && ByteOfName(part.texts[id])) vocabulary.kinds[id] = TokenKind::kByte;
  }
  for (const AddedToken& token : added.tokens) {
    vocabulary.kinds[static_cast<size_t>(token.id)] = token.is_control ? TokenKind::kControl : TokenKind::kUserDefined;
  }
  return vocabulary.BuildIndex(root.subject());
}

Status FillAddedTokens(const JsonField& root, AddedPart added, TokenizerData* data) {
  for (size_t i = 0; i < added.tokens.size(); ++i) {
    AddedToken& token = added.tokens[i];
    if (!added.normalized[i] || data->normalizer.empty()) {
      NM_TRY(data->added.Add(std::move(token), root.subject()));
      continue;
    }
    token.text = data->normalizer.Apply(token.text);
    NM_TRY(data->added_normalized.Add(std::move(token), root.subject()));
  }
  return Ok{};
}

Status BuildModel(const JsonField& root, const TokenizerDocument& document, const BpeModel::Options& options,
                  TokenizerData* data) {
  const std::string path = root.path() + "model.merges";
  const size_t n_merges = document.n_merges();
  if (n_merges == 0) {
    return MakeError(Code::kCorruptFile, "{}: {}; without merges every character would be a token", path,
                     document.has_merges ? "empty" : "missing");
  }
  if (n_merges >= INT32_MAX) return MakeError(Code::kCorruptFile, "{}: {} merges, ranks have 31 bits", path, n_merges);
  std::vector<BpeModel::MergeText> merges;
  merges.reserve(n_merges);
  for (size_t i = 0; i < n_merges; ++i) {
    merges.push_back({document.merge_texts[2 * i], document.merge_texts[2 * i + 1]});
  }
  NM_TRY_VAR(data->model, BpeModel::FromMerges(data->vocabulary, merges, options, true, path));
  if (data->model.n_missing_bytes() > 0 && !options.unk) {
    data->warnings.push_back(fmt::format("{}{} of 256 bytes have no token; text with them is lost", root.path(),
                                         data->model.n_missing_bytes()));
  }
  return Ok{};
}

// A field of tokenizer_config.json: "<s>", {"content": "<s>", ...} or null.
Result<std::optional<int32_t>> ReadNamedToken(const JsonField& config, std::string_view key,
                                              const Vocabulary& vocabulary) {
  NM_TRY_VAR(const auto field, config.Find(key));
  if (!field) return std::optional<int32_t>();
  NM_TRY_VAR(const std::string text, field->value().is_object() ? field->String("content") : field->AsString());
  const auto id = vocabulary.Find(text);
  if (!id) return field->Corrupt("'{}' is not in the vocabulary", Printable(text));
  return id;
}

// One template, or a list of named ones of which "default" counts.
Result<std::string> ReadChatTemplate(const JsonField& config) {
  NM_TRY_VAR(const auto field, config.Find("chat_template"));
  if (!field) return std::string();
  if (!field->value().is_array()) return field->AsString();
  for (size_t i = 0; i < field->value().size(); ++i) {
    NM_TRY_VAR(const std::string name, field->Item(i).String("name"));
    if (name == "default") return field->Item(i).String("template");
  }
  return std::string();
}

// Llama's tokenizer class rebuilds its template from these two flags; the others take the template as it stands.
Status ApplyAddFlags(const JsonField& config, TokenizerData* data) {
  NM_TRY_VAR(const std::string kind, config.StringOr("tokenizer_class", ""));
  if (!kind.starts_with("Llama") && !kind.starts_with("CodeLlama")) return Ok{};
  const SpecialTokens& special = data->special;
  const auto apply = [&](std::string_view key, const std::optional<int32_t>& id, std::vector<int32_t>* ids) -> Status {
    NM_TRY_VAR(const auto field, config.Find(key));
    if (!field) return Ok{};
    if (!field->value().is_boolean()) return field->Corrupt("is no bool");
    ids->clear();
    if (field->value().get<bool>() && id) ids->push_back(*id);
    return Ok{};
  };
  NM_TRY(apply("add_bos_token", special.bos, &data->prefix_ids));
  return apply("add_eos_token", special.eos, &data->suffix_ids);
}

Status ReadTokenizerConfig(std::string_view text, std::string_view name, TokenizerData* data) {
  if (text.empty()) return Ok{};
  const std::string subject = fmt::format("{}: tokenizer_config.json", name);
  NM_TRY_VAR(const Json document, ParseJson(text, subject));
  const JsonField config(&document, subject + ": ");
  SpecialTokens& special = data->special;
  NM_TRY_VAR(special.bos, ReadNamedToken(config, "bos_token", data->vocabulary));
  NM_TRY_VAR(special.eos, ReadNamedToken(config, "eos_token", data->vocabulary));
  // Fine-tunes often name a padding token that nothing defines; nobody generates it.
  for (const auto& [key, id] : {std::pair("pad_token", &special.pad), std::pair("unk_token", &special.unk)}) {
    if (*id) continue;
    const auto found = ReadNamedToken(config, key, data->vocabulary);
    if (found.ok()) *id = *found;
    if (!found.ok()) data->warnings.push_back(found.error().message);
  }
  NM_TRY_VAR(data->chat_template, ReadChatTemplate(config));
  return ApplyAddFlags(config, data);
}

Status ReadGenerationConfig(std::string_view text, std::string_view name, TokenizerData* data) {
  if (text.empty()) return Ok{};
  const std::string subject = fmt::format("{}: generation_config.json", name);
  NM_TRY_VAR(const Json document, ParseJson(text, subject));
  const JsonField config(&document, subject + ": ");
  NM_TRY_VAR(const auto field, config.Find("eos_token_id"));
  if (!field) return Ok{};
  const bool is_list = field->value().is_array();
  const size_t n = is_list ? field->value().size() : 1;
  for (size_t i = 0; i < n; ++i) {
    NM_TRY_VAR(const size_t id, (is_list ? field->Item(i) : *field).Index(data->vocabulary.size()));
    data->special.eog.push_back(static_cast<int32_t>(id));
    if (!data->special.eos) data->special.eos = static_cast<int32_t>(id);
  }
  return Ok{};
}

Status ReadComponents(const JsonField& root, bool* byte_level, TokenizerData* data) {
  NM_TRY_VAR(const auto normalizer, root.Find("normalizer"));
  if (normalizer) NM_TRY(ReadNormalizer(*normalizer, 0, &data->normalizer));
  NM_TRY_VAR(const auto pre_tokenizer, root.Find("pre_tokenizer"));
  if (pre_tokenizer) NM_TRY(ReadPreTokenizer(*pre_tokenizer, 0, &data->pre_tokenizer, byte_level));
  NM_TRY_VAR(const auto decoder, root.Find("decoder"));
  if (decoder) NM_TRY(ReadDecoder(*decoder, 0, *byte_level, &data->strips_leading_space));
  return Ok{};
}

Status LoadDocument(const TokenizerDocument& document, const JsonField& root, TokenizerData* data) {
  NM_TRY_VAR(const JsonField model, root.At("model"));
  ModelPart part;
  NM_TRY(ReadModelOptions(model, &part));
  if (!document.has_vocab) return model.Corrupt("'vocab' is missing or no object");
  NM_TRY_VAR(const auto added_list, root.Find("added_tokens"));
  const size_t n_entries = document.vocab_texts.size() + (added_list ? added_list->value().size() : 0);
  const size_t id_limit = std::min<size_t>(n_entries * kMaxIdsPerToken + kMaxExtraIds, INT32_MAX);
  NM_TRY(ReadVocab(root, document, id_limit, &part));
  AddedPart added;
  NM_TRY(ReadAddedTokens(root, id_limit, &added));
  NM_TRY(PlaceAddedTokens(root, added, &part));
  NM_TRY(BuildVocabulary(root, added, part, data));
  NM_TRY(ReadComponents(root, &part.options.byte_level, data));
  if (part.unk_token) {
    part.options.unk = data->vocabulary.Find(*part.unk_token);
    if (!part.options.unk) {
      return model.Corrupt("unk_token '{}' is not in the vocabulary", Printable(*part.unk_token));
    }
    data->special.unk = part.options.unk;
  }
  NM_TRY(BuildModel(root, document, part.options, data));
  NM_TRY(FillAddedTokens(root, std::move(added), data));
  NM_TRY_VAR(const auto post_processor, root.Find("post_processor"));
  if (post_processor) {
    NM_TRY(ReadPostProcessor(*post_processor, 0, data->vocabulary.size(), &data->prefix_ids, &data->suffix_ids));
  }
  MakePieces(part.options.byte_level, part.options.byte_fallback, data);
  data->description = fmt::format("{} (tokenizer.json), {} tokens",
                                  part.options.byte_level ? "BPE" : "SentencePiece BPE", data->vocabulary.size());
  return Ok{};
}

}  // namespace

Status LoadJsonTokenizer(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                         std::string_view generation_config_json, std::string_view name, TokenizerData* data) {
  const std::string subject = fmt::format("{}: tokenizer.json", name);
  NM_TRY_VAR(const TokenizerDocument document, ParseTokenizerDocument(tokenizer_json, subject));
  NM_TRY(LoadDocument(document, JsonField(&document.rest, subject + ": "), data));
  NM_TRY(ReadTokenizerConfig(tokenizer_config_json, name, data));
  NM_TRY(ReadGenerationConfig(generation_config_json, name, data));
  SpecialTokens& special = data->special;
  const auto holds = [](const std::vector<int32_t>& ids, const std::optional<int32_t>& id) {
    return id && std::find(ids.begin(), ids.end(), *id) != ids.end();
  };
  if (!special.bos && !data->prefix_ids.empty()) special.bos = data->prefix_ids.front();
  special.add_bos = holds(data->prefix_ids, special.bos);
  special.add_eos = holds(data->suffix_ids, special.eos);
  FinishEog(data);
  return Ok{};
}

}  // namespace npumoe
