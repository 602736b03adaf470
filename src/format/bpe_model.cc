// SPDX-License-Identifier: Apache-2.0
#include "format/bpe_model.h"

#include <algorithm>

#include "base/check.h"
#include "format/printable.h"
#include "format/unicode.h"

namespace npumoe {
namespace {

// Pieces are worked on in stretches of at most this many bytes, so that offsets fit into 32 bits.
constexpr size_t kMaxRunBytes = size_t{1} << 30;

// A token that can come out of merging. Every way to cut it in two is looked up once, which costs its length squared.
// assumed: real vocabularies stay far below (Llama 48 bytes, Gemma 93).
constexpr size_t kMaxScoredTokenBytes = 512;

bool HasInnerMark(std::string_view text) {
  for (size_t at = text.find(kSpaceMark, 1); at != std::string_view::npos; at = text.find(kSpaceMark, at + 1)) {
    if (at < kSpaceMark.size() || text.substr(at - kSpaceMark.size(), kSpaceMark.size()) != kSpaceMark) return true;
  }
  return false;
}

bool CanMerge(TokenKind kind) {
  return kind == TokenKind::kNormal || kind == TokenKind::kUserDefined || kind == TokenKind::kUnused;
}

}  // namespace

// Gives every text that merging may meet a symbol.
class BpeBuilder {
 public:
  BpeBuilder(const Vocabulary& vocabulary, const BpeModel::Options& options) : vocabulary_(vocabulary) {
    model_.options_ = options;
    model_.vocab_size_ = vocabulary.size();
    model_.page_of_.assign(0x110000 >> 8, 0);
    model_.pages_.emplace_back().fill(-1);
    model_.byte_ids_.fill(-1);
    for (size_t i = 0; i < vocabulary.size(); ++i) AddToken(static_cast<int32_t>(i));
    model_.cuts_before_mark_ = !options.byte_level;
  }

  void Reserve(size_t n_merges) { model_.merges_.Reserve(n_merges); }

  // The id of the token with this text if it may come out of merging, else a symbol of its own.
  int32_t SymbolOf(std::string_view text) {
    const auto id = vocabulary_.Find(text);
    if (id && CanMerge(vocabulary_.kinds[static_cast<size_t>(*id)])) return *id;
    const auto [it, is_new] = merge_only_ids_.try_emplace(
        std::string(text), static_cast<int32_t>(model_.vocab_size_ + model_.merge_only_.size()));
    if (is_new) {
      std::optional<std::string> bytes;
      if (model_.options_.byte_level) bytes = BytesOfLetters(text);
      model_.merge_only_.push_back(bytes ? *bytes : std::string(text));
      if (!model_.options_.byte_level) AddCharacter(text, it->second);
    }
    return it->second;
  }

  bool Insert(int32_t left, int32_t right, uint32_t rank, int32_t merged, std::string_view merged_text) {
    if (model_.cuts_before_mark_ && HasInnerMark(merged_text)) model_.cuts_before_mark_ = false;
    return model_.merges_.Insert(left, right, rank, merged);
  }

  BpeModel Finish() { return std::move(model_); }

 private:
  void AddToken(int32_t id) {
    const std::string_view text = vocabulary_.texts[static_cast<size_t>(id)];
    const TokenKind kind = vocabulary_.kinds[static_cast<size_t>(id)];
    if (vocabulary_.Find(text) != id) return;  // a later token with the same text
    if (model_.options_.byte_level) {
      if (!CanMerge(kind)) return;
      const auto bytes = BytesOfLetters(text);
      if (!bytes) return;
      if (bytes->size() == 1) model_.byte_ids_[static_cast<unsigned char>((*bytes)[0])] = id;
      if (model_.options_.ignore_merges) model_.whole_.try_emplace(*bytes, id);
      return;
    }
    const auto byte = ByteOfName(text);
    if (model_.options_.byte_fallback && byte && kind != TokenKind::kControl) model_.byte_ids_[*byte] = id;
    if (!CanMerge(kind)) return;
    AddCharacter(text, id);
    if (model_.options_.ignore_merges) model_.whole_.try_emplace(std::string(text), id);
  }

  void AddCharacter(std::string_view text, int32_t symbol) {
    if (text.empty()) return;
    const Utf8Char c = DecodeUtf8(text, 0);
    if (c.length == 0 || c.length != text.size()) return;
    uint16_t& page = model_.page_of_[c.code >> 8];
    if (page == 0) {
      page = static_cast<uint16_t>(model_.pages_.size());
      model_.pages_.emplace_back().fill(-1);
    }
    model_.pages_[page][c.code & 0xFF] = symbol;
  }

  const Vocabulary& vocabulary_;
  BpeModel model_;
  std::unordered_map<std::string, int32_t> merge_only_ids_;
};

Result<BpeModel> BpeModel::FromMerges(const Vocabulary& vocabulary, std::span<const MergeText> merges,
                                      const Options& options, bool strict, std::string_view subject) {
  if (merges.size() > (INT32_MAX - vocabulary.size()) / 3) {  // a merge has at most three texts that are no tokens
    return MakeError(Code::kUnsupported, "{}: {} merges and {} tokens, ids have 31 bits", subject, merges.size(),
                     vocabulary.size());
  }
  BpeBuilder builder(vocabulary, options);
  builder.Reserve(merges.size());
  std::string joined;
  for (size_t i = 0; i < merges.size(); ++i) {
    const MergeText& merge = merges[i];
    if (merge.left.empty() || merge.right.empty()) {
      return MakeError(Code::kCorruptFile, "{}: merge {}: one side is empty", subject, i);
    }
    joined.assign(merge.left).append(merge.right);
    std::array<int32_t, 3> symbols{};
    const std::array<std::string_view, 3> texts = {merge.left, merge.right, joined};
    for (size_t k = 0; k < 3; ++k) {
      symbols[k] = builder.SymbolOf(texts[k]);
      const bool is_token = static_cast<size_t>(symbols[k]) < vocabulary.size() || vocabulary.Find(texts[k]);
      if (strict && !is_token) {
        return MakeError(Code::kCorruptFile, "{}: merge {}: '{}' is not in the vocabulary", subject, i,
                         Printable(texts[k]));
      }
    }
    if (!builder.Insert(symbols[0], symbols[1], static_cast<uint32_t>(i), symbols[2], joined)) {
      return MakeError(Code::kCorruptFile, "{}: merge {}: the pair '{}', '{}' stands there twice", subject, i,
                       Printable(merge.left), Printable(merge.right));
    }
  }
  return builder.Finish();
}

Result<BpeModel> BpeModel::FromScores(const Vocabulary& vocabulary, std::span<const double> scores,
                                      const Options& options, std::string_view subject) {
  BpeBuilder builder(vocabulary, options);
  std::vector<double> distinct(scores.begin(), scores.end());
  std::sort(distinct.begin(), distinct.end(), std::greater<>());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());

  struct Cut {
    int32_t left, right, merged;
  };
  std::vector<Cut> cuts;
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    const std::string_view text = vocabulary.texts[i];
    if (!CanMerge(vocabulary.kinds[i]) || vocabulary.Find(text) != static_cast<int32_t>(i)) continue;
    if (text.size() > kMaxScoredTokenBytes) {
      return MakeError(Code::kUnsupported, "{}: token {} has {} bytes, at most {} are supported", subject, i,
                       text.size(), kMaxScoredTokenBytes);
    }
    for (size_t at = 0; at < text.size();) {
      const size_t length = std::max<size_t>(DecodeUtf8(text, at).length, 1);
      at += length;
      if (at >= text.size()) break;
      // A half is a token or a single character; nothing else can stand beside a merge.
      const auto half = [&](std::string_view part) -> int32_t {
        const auto id = vocabulary.Find(part);
        if (id && CanMerge(vocabulary.kinds[static_cast<size_t>(*id)])) return *id;
        return DecodeUtf8(part, 0).length == part.size() ? builder.SymbolOf(part) : -1;
      };
      const int32_t left = half(text.substr(0, at)), right = half(text.substr(at));
      if (left >= 0 && right >= 0) cuts.push_back({left, right, static_cast<int32_t>(i)});
    }
  }
  builder.Reserve(cuts.size());
  for (const Cut& cut : cuts) {
    const double score = scores[static_cast<size_t>(cut.merged)];
    const auto rank = std::lower_bound(distinct.begin(), distinct.end(), score, std::greater<>()) - distinct.begin();
    builder.Insert(cut.left, cut.right, static_cast<uint32_t>(rank), cut.merged,
                   vocabulary.texts[static_cast<size_t>(cut.merged)]);
  }
  return builder.Finish();
}

size_t BpeModel::n_missing_bytes() const {
  if (!options_.byte_level && !options_.byte_fallback) return 0;
  return static_cast<size_t>(std::count(byte_ids_.begin(), byte_ids_.end(), -1));
}

int32_t BpeModel::SymbolOf(char32_t code) const { return pages_[page_of_[code >> 8]][code & 0xFF]; }

void BpeModel::EmitBytes(std::string_view bytes, bool* after_unk, std::vector<int32_t>* out) const {
  const auto id_of = [this](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  const auto has_id = [&](char c) { return id_of(c) >= 0; };
  if (std::all_of(bytes.begin(), bytes.end(), has_id)) {
    for (const char c : bytes) out->push_back(id_of(c));
    *after_unk = false;
    return;
  }
  if (!options_.unk || (options_.fuse_unk && *after_unk)) return;
  out->push_back(*options_.unk);
  *after_unk = true;
}

void BpeModel::Emit(std::string_view piece, int32_t symbol, bool* after_unk, std::vector<int32_t>* out) const {
  if (symbol >= 0 && static_cast<size_t>(symbol) < vocab_size_) {
    out->push_back(symbol);
    *after_unk = false;
  } else if (symbol >= 0) {
    const std::string& bytes = merge_only_[static_cast<size_t>(symbol) - vocab_size_];
    if (!options_.byte_level) return EmitBytes(bytes, after_unk, out);
    for (const char c : bytes) EmitBytes({&c, 1}, after_unk, out);
  } else {
    const auto offset = static_cast<size_t>(~symbol);
    const size_t length = options_.byte_level ? 1 : std::max<size_t>(DecodeUtf8(piece, offset).length, 1);
    EmitBytes(piece.substr(offset, length), after_unk, out);
  }
}

void BpeModel::EncodeRun(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* out) const {
  std::vector<int32_t>& symbols = scratch->symbols;
  bool after_unk = false;
  symbols.clear();
  // A character without a symbol is remembered by its place: ~offset, which is negative.
  if (options_.byte_level) {
    for (size_t i = 0; i < piece.size(); ++i) {
      const int32_t id = byte_ids_[static_cast<unsigned char>(piece[i])];
      symbols.push_back(id >= 0 ? id : ~static_cast<int32_t>(i));
    }
  } else {
    for (size_t i = 0; i < piece.size();) {
      const Utf8Char c = DecodeUtf8(piece, i);
      const int32_t symbol = c.length > 0 ? SymbolOf(c.code) : -1;
      symbols.push_back(symbol >= 0 ? symbol : ~static_cast<int32_t>(i));
      i += std::max<size_t>(c.length, 1);
    }
  }
  ApplyMerges(merges_, &symbols, &scratch->merge);
  for (const int32_t symbol : symbols) Emit(piece, symbol, &after_unk, out);
}

void BpeModel::Encode(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* out) const {
  if (options_.ignore_merges) {
    const auto it = whole_.find(std::string(piece));
    if (it != whole_.end()) {
      out->push_back(it->second);
      return;
    }
  }
  for (size_t begin = 0; begin < piece.size();) {
    size_t end = std::min(piece.size(), begin + kMaxRunBytes);
    while (end < piece.size() && end > begin + 1 && (static_cast<unsigned char>(piece[end]) & 0xC0) == 0x80) --end;
    if (cuts_before_mark_) {
      // The next mark that follows another character: no token reaches across.
      for (size_t at = piece.find(kSpaceMark, begin + 1); at < end; at = piece.find(kSpaceMark, at + 1)) {
        if (at < begin + kSpaceMark.size() || piece.substr(at - kSpaceMark.size(), kSpaceMark.size()) != kSpaceMark) {
          end = at;
          break;
        }
      }
    }
    EncodeRun(piece.substr(begin, end - begin), scratch, out);
    begin = end;
  }
}

}  // namespace npumoe
