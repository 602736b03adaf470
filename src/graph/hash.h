// SPDX-License-Identifier: Apache-2.0
// 128-bit content hash: fast enough for gigabytes of weights, the same on every machine; not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace npumoe {

// One thread at a time. Every Add is framed by its length, so that "ab","c" and "a","bc" differ.
class ContentHash {
 public:
  void Add(std::span<const std::byte> bytes);
  void Add(std::string_view text) { Add(std::as_bytes(std::span(text.data(), text.size()))); }
  void Add(uint64_t word);

  std::string Hex() const;  // 32 digits

 private:
  // Two lanes over the same words with different odd multipliers (those of SplitMix64's finisher).
  uint64_t a_ = 0x9e3779b97f4a7c15ULL, b_ = 0x243f6a8885a308d3ULL;
};

}  // namespace npumoe
