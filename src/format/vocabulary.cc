// SPDX-License-Identifier: Apache-2.0
#include "format/vocabulary.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

#include "base/check.h"
#include "format/printable.h"
#include "format/unicode.h"

namespace npumoe {
namespace {

// GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and after, in order.
bool StandsForItself(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

std::array<char32_t, 256> MakeByteLetters() {
  std::array<char32_t, 256> letters{};
  char32_t next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) letters[byte] = StandsForItself(byte) ? byte : next++;
  return letters;
}

std::array<int16_t, 512> MakeLetterBytes() {
  std::array<int16_t, 512> bytes{};
  bytes.fill(-1);
  const auto letters = MakeByteLetters();
  for (size_t byte = 0; byte < 256; ++byte) bytes[letters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::optional<std::string> BytesOfLetters(std::string_view letters) {
  static const std::array<int16_t, 512> kBytes = MakeLetterBytes();
  std::string out;
  out.reserve(letters.size());
  for (size_t pos = 0; pos < letters.size();) {
    const Utf8Char c = DecodeUtf8(letters, pos);
    if (c.length == 0 || c.code >= kBytes.size() || kBytes[c.code] < 0) return std::nullopt;
    out.push_back(static_cast<char>(kBytes[c.code]));
    pos += c.length;
  }
  return out;
}

std::string LettersOfBytes(std::string_view bytes) {
  static const std::array<char32_t, 256> kLetters = MakeByteLetters();
  std::string out;
  for (const char c : bytes) AppendUtf8(kLetters[static_cast<unsigned char>(c)], &out);
  return out;
}

std::optional<uint8_t> ByteOfName(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  const int high = HexValue(text[3]), low = HexValue(text[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<uint8_t>(high * 16 + low);
}

void TextTable::Reserve(size_t n, size_t n_bytes) {
  ends_.reserve(n + 1);
  bytes_.reserve(n_bytes);
}

void TextTable::Add(std::string_view text) {
  bytes_.insert(bytes_.end(), text.begin(), text.end());
  ends_.push_back(bytes_.size());
}

size_t Vocabulary::SlotOf(std::string_view text, size_t hash) const {
  const auto short_hash = static_cast<uint32_t>(hash);
  size_t slot = hash & (slots_.size() - 1);
  while (slots_[slot].id >= 0 &&
         (slots_[slot].hash != short_hash || texts[static_cast<size_t>(slots_[slot].id)] != text)) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

Status Vocabulary::BuildIndex(std::string_view subject) {
  NM_CHECK(kinds.size() == size() && size() <= INT32_MAX);
  slots_.assign(std::bit_ceil(std::max<size_t>(2 * size(), 2)), Slot{});
  const auto is_padding = [this](size_t id) {
    return kinds[id] == TokenKind::kUnused || kinds[id] == TokenKind::kUnknown;
  };
  for (size_t id = 0; id < size(); ++id) {
    const size_t hash = std::hash<std::string_view>()(texts[id]);
    Slot& slot = slots_[SlotOf(texts[id], hash)];
    if (slot.id < 0) {
      slot = {static_cast<uint32_t>(hash), static_cast<int32_t>(id)};
    } else if (!is_padding(id) && !is_padding(static_cast<size_t>(slot.id))) {
      return MakeError(Code::kCorruptFile, "{}: tokens {} and {} have the same text '{}'", subject, slot.id, id,
                       Printable(texts[id]));
    }
  }
  return Ok{};
}

std::optional<int32_t> Vocabulary::Find(std::string_view text) const {
  if (slots_.empty()) return std::nullopt;
  const Slot& slot = slots_[SlotOf(text, std::hash<std::string_view>()(text))];
  if (slot.id < 0) return std::nullopt;
  return slot.id;
}

}  // namespace npumoe
