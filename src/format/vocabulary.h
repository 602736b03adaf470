// SPDX-License-Identifier: Apache-2.0
// Token ids and their texts, and the two spellings that vocabularies use for bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

// SentencePiece's stand-in for a space, U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// The numbers are those of tokenizer.ggml.token_type.
enum class TokenKind : uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// GPT-2 writes every byte as one printable letter: bytes of a token text, or nullopt if a letter is none of these.
std::optional<std::string> BytesOfLetters(std::string_view letters);
std::string LettersOfBytes(std::string_view bytes);

// The byte that "<0x0A>" names, or nullopt if `text` is not exactly of that form.
std::optional<uint8_t> ByteOfName(std::string_view text);

// Many short strings in one block. Views stay valid when it moves.
class TextTable {
 public:
  void Reserve(size_t n, size_t n_bytes);
  void Add(std::string_view text);
  std::string_view operator[](size_t i) const { return {bytes_.data() + ends_[i], ends_[i + 1] - ends_[i]}; }
  size_t size() const { return ends_.size() - 1; }

 private:
  std::vector<char> bytes_;
  std::vector<size_t> ends_{0};
};

// Token ids, their spelling in the vocabulary and their kinds. Immutable once the index is built.
struct Vocabulary {
  TextTable texts;
  std::vector<TokenKind> kinds;

  size_t size() const { return texts.size(); }

  // Makes Find work: call it once texts and kinds are complete. Of equal texts the first one is found; two of them are
  // kCorruptFile if text can become both (padding may repeat).
  Status BuildIndex(std::string_view subject);
  std::optional<int32_t> Find(std::string_view text) const;

 private:
  struct Slot {
    uint32_t hash = 0;
    int32_t id = -1;  // -1: empty
  };
  size_t SlotOf(std::string_view text, size_t hash) const;  // index of its slot, or of an empty one
  std::vector<Slot> slots_;                                 // open addressing, a power of two, at most half full
};

}  // namespace npumoe
