// SPDX-License-Identifier: Apache-2.0
#include "format/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "format/printable.h"
#include "format/tokenizer_impl.h"

namespace npumoe {
namespace {

// End-of-turn and end-of-text markers of published models: Llama 2 and 3, Phi, Qwen, Gemma, GPT-2, gpt-oss, DeepSeek,
// Command R, OLMo.
constexpr std::string_view kEndMarkers[] = {
    "</s>",
    "<|endoftext|>",
    "<|im_end|>",
    "<|end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<|eot|>",
    "<EOT>",
    "<|return|>",
    "<|call|>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
};

// Buffers of one Encode call.
struct EncodeScratch {
  SplitScratch split;
  BpeScratch bpe;
};

void EncodeNormalized(const TokenizerData& data, std::string_view text, bool is_first, EncodeScratch* scratch,
                      std::vector<int32_t>* out) {
  data.pre_tokenizer.Split(text, is_first, &scratch->split);
  for (const TextRange& piece : scratch->split.pieces) {
    data.model.Encode(scratch->split.text.substr(piece.begin, piece.end - piece.begin), &scratch->bpe, out);
  }
}

// Calls on_text(text, is_first) and on_token(id) for what lies between and in the added tokens of `text`.
template <typename OnText, typename OnToken>
void Partition(const AddedTokens& added, std::string_view text, bool parse_special, OnText on_text, OnToken on_token) {
  size_t pos = 0;
  while (pos < text.size()) {
    const auto match = added.FindNext(text, pos, parse_special);
    const size_t end = match ? match->begin : text.size();
    if (end > pos) on_text(text.substr(pos, end - pos), pos == 0);
    if (!match) break;
    on_token(match->id);
    pos = match->end;
  }
}

void EncodeText(const TokenizerData& data, std::string_view text, bool is_first, bool parse_special,
                EncodeScratch* scratch, std::vector<int32_t>* out) {
  std::string normalized;
  if (!data.normalizer.empty()) {
    normalized = data.normalizer.Apply(text);
    text = normalized;
  }
  Partition(
      data.added_normalized, text, parse_special,
      [&](std::string_view part, bool starts) { EncodeNormalized(data, part, is_first && starts, scratch, out); },
      [&](int32_t id) { out->push_back(id); });
}

// The bytes a token of an SPM vocabulary stands for.
std::string SpmPiece(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t mark = std::min(text.find(kSpaceMark, pos), text.size());
    out.append(text.substr(pos, mark - pos));
    if (mark < text.size()) out.push_back(' ');
    pos = mark + kSpaceMark.size();
  }
  return out;
}

}  // namespace

struct Tokenizer::Impl {
  TokenizerData data;
};

void FinishEog(TokenizerData* data) {
  SpecialTokens& special = data->special;
  const auto control = [&](std::string_view text) -> std::optional<int32_t> {
    const auto id = data->vocabulary.Find(text);
    if (!id || data->vocabulary.kinds[static_cast<size_t>(*id)] != TokenKind::kControl) return std::nullopt;
    return id;
  };
  if (special.eos) special.eog.push_back(*special.eos);
  // In gpt-oss's format a message ends with <|end|> and the answer goes on; <|return|> and <|call|> end it.
  const bool is_harmony = control("<|return|>") && control("<|call|>");
  for (const std::string_view marker : kEndMarkers) {
    if (is_harmony && marker == "<|end|>") continue;
    if (const auto id = control(marker)) special.eog.push_back(*id);
  }
  std::sort(special.eog.begin(), special.eog.end());
  special.eog.erase(std::unique(special.eog.begin(), special.eog.end()), special.eog.end());
}

void MakePieces(bool byte_level, bool byte_fallback, TokenizerData* data) {
  const Vocabulary& vocabulary = data->vocabulary;
  data->pieces.Reserve(vocabulary.size(), 0);
  for (size_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary.texts[id];
    const TokenKind kind = vocabulary.kinds[id];
    if (kind == TokenKind::kControl || kind == TokenKind::kUnknown) {
      data->pieces.Add(text);
    } else if (byte_level) {
      const auto bytes = kind == TokenKind::kUserDefined ? std::nullopt : BytesOfLetters(text);
      data->pieces.Add(bytes ? *bytes : text);
    } else if (const auto byte = ByteOfName(text); byte_fallback && byte) {
      const char c = static_cast<char>(*byte);
      data->pieces.Add({&c, 1});
    } else {
      data->pieces.Add(SpmPiece(text));
    }
  }
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::FromGguf(const GgufFile& file, std::string_view pre_override) {
  return FromMetadata(file.metadata(), file.path(), pre_override);
}

Result<Tokenizer> Tokenizer::FromMetadata(const GgufMetadata& metadata, std::string_view name,
                                          std::string_view pre_override) {
  auto impl = std::make_unique<Impl>();
  NM_TRY(LoadGgufTokenizer(metadata, name, pre_override, &impl->data));
  return Tokenizer(std::move(impl));
}

Result<Tokenizer> Tokenizer::FromHuggingFace(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                                             std::string_view generation_config_json, std::string_view name) {
  auto impl = std::make_unique<Impl>();
  NM_TRY(LoadJsonTokenizer(tokenizer_json, tokenizer_config_json, generation_config_json, name, &impl->data));
  return Tokenizer(std::move(impl));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, const TokenizeOptions& options) const {
  const TokenizerData& data = impl_->data;
  EncodeScratch scratch;
  std::vector<int32_t> out;
  out.reserve(text.size() / 3 + 8);  // English takes about four bytes a token
  if (options.add_special) out.insert(out.end(), data.prefix_ids.begin(), data.prefix_ids.end());
  Partition(
      data.added, text, options.parse_special,
      [&](std::string_view part, bool is_first) {
        EncodeText(data, part, is_first && !options.is_continuation, options.parse_special, &scratch, &out);
      },
      [&](int32_t id) { out.push_back(id); });
  if (options.add_special) out.insert(out.end(), data.suffix_ids.begin(), data.suffix_ids.end());
  return out;
}

std::string Tokenizer::Piece(int32_t id, bool special) const {
  const TokenizerData& data = impl_->data;
  if (id < 0 || static_cast<size_t>(id) >= data.vocabulary.size()) return {};
  const TokenKind kind = data.vocabulary.kinds[static_cast<size_t>(id)];
  if (!special && (kind == TokenKind::kControl || kind == TokenKind::kUnknown)) return {};
  return std::string(data.pieces[static_cast<size_t>(id)]);
}

std::string Tokenizer::Decode(const std::vector<int32_t>& ids, bool special) const {
  std::string out;
  for (const int32_t id : ids) out += Piece(id, special);
  if (impl_->data.strips_leading_space && out.starts_with(' ')) out.erase(0, 1);
  return out;
}

size_t Tokenizer::vocab_size() const { return impl_->data.vocabulary.size(); }
const SpecialTokens& Tokenizer::special() const { return impl_->data.special; }
bool Tokenizer::IsEog(int32_t id) const { return std::binary_search(special().eog.begin(), special().eog.end(), id); }
std::optional<int32_t> Tokenizer::Find(std::string_view token) const { return impl_->data.vocabulary.Find(token); }
const std::string& Tokenizer::chat_template() const { return impl_->data.chat_template; }
const std::string& Tokenizer::description() const { return impl_->data.description; }
const std::vector<std::string>& Tokenizer::warnings() const { return impl_->data.warnings; }

}  // namespace npumoe
