// SPDX-License-Identifier: Apache-2.0
// The vocabulary of a BPE tokenizer and the encoding of one piece: byte-level (GPT-2 and after) or by characters with
// byte fallback (SentencePiece).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/bpe.h"
#include "format/vocabulary.h"
#include "npumoe/result.h"

namespace npumoe {

// Buffers of BpeModel::Encode, reused between calls. One thread at a time.
struct BpeScratch {
  std::vector<int32_t> symbols;
  MergeScratch merge;
};

// Immutable once built.
class BpeModel {
 public:
  struct Options {
    bool byte_level = false;
    bool byte_fallback = false;
    bool fuse_unk = false;
    bool ignore_merges = false;
    std::optional<int32_t> unk;
  };
  struct MergeText {
    std::string_view left, right;
  };

  // By ranked merges: merges[0] first. `strict`: a merge whose texts are no tokens is kCorruptFile; otherwise such a
  // text is spelled out in bytes when it survives.
  static Result<BpeModel> FromMerges(const Vocabulary& vocabulary, std::span<const MergeText> merges,
                                     const Options& options, bool strict, std::string_view subject);
  // By scores: the pair whose joined text has the highest score first. scores: one per token.
  static Result<BpeModel> FromScores(const Vocabulary& vocabulary, std::span<const double> scores,
                                     const Options& options, std::string_view subject);

  // Appends the ids of one piece.
  void Encode(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* out) const;

  size_t n_merges() const { return merges_.size(); }
  // Bytes that have no token of their own (byte-level and byte fallback only).
  size_t n_missing_bytes() const;
  // Texts that occur in merges but are no tokens.
  size_t n_merge_only_texts() const { return merge_only_.size(); }
  // No token has a space mark after another character, so that text may be cut before each such mark.
  bool cuts_before_mark() const { return cuts_before_mark_; }

 private:
  friend class BpeBuilder;
  void EncodeRun(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* out) const;
  void Emit(std::string_view piece, int32_t symbol, bool* after_unk, std::vector<int32_t>* out) const;
  void EmitBytes(std::string_view bytes, bool* after_unk, std::vector<int32_t>* out) const;
  int32_t SymbolOf(char32_t code) const;

  Options options_;
  MergeTable merges_;
  size_t vocab_size_ = 0;
  std::array<int32_t, 256> byte_ids_{};             // -1: none
  std::vector<std::string> merge_only_;             // bytes of the symbols vocab_size_, vocab_size_ + 1, ...
  std::vector<uint16_t> page_of_;                   // code >> 8 to a page, 0 = no symbol there
  std::vector<std::array<int32_t, 256>> pages_;     // code & 255 to a symbol or -1
  std::unordered_map<std::string, int32_t> whole_;  // ignore_merges: bytes of a token to its id
  bool cuts_before_mark_ = false;
};

}  // namespace npumoe
