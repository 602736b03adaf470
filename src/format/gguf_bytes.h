// SPDX-License-Identifier: Apache-2.0
// Test helper: builds GGUF files byte by byte, right ones and wrong ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace npumoe {

template <typename T>
std::string Le(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
inline std::string U32(uint32_t value) { return Le(value); }
inline std::string U64(uint64_t value) { return Le(value); }
inline std::string Str(std::string_view text) { return U64(text.size()) + std::string(text); }

inline constexpr uint32_t kU8 = 0, kI8 = 1, kU16 = 2, kI16 = 3, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8,
                          kArray = 9, kU64 = 10, kI64 = 11, kF64 = 12;

inline std::string Kv(std::string_view key, uint32_t type, std::string_view payload) {
  return Str(key) + U32(type) + std::string(payload);
}
inline std::string KvArray(std::string_view key, uint32_t type, uint64_t count, std::string_view payload) {
  return Kv(key, kArray, U32(type) + U64(count) + std::string(payload));
}

// `dims` innermost first, as in the file; `type` 0 is F32.
inline std::string TensorInfoBytes(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                                   uint64_t offset) {
  std::string bytes = Str(name) + U32(static_cast<uint32_t>(dims.size()));
  for (const uint64_t extent : dims) bytes += U64(extent);
  return bytes + U32(type) + U64(offset);
}

inline std::string Header(uint32_t version, uint64_t n_tensors, uint64_t n_metadata) {
  return "GGUF" + U32(version) + U64(n_tensors) + U64(n_metadata);
}

struct GgufBytes {
  std::vector<std::string> metadata = {}, tensors = {};
  std::string data = {};
  uint32_t version = 3;
  size_t alignment = 32;

  std::string Build() const {
    std::string bytes = Header(version, tensors.size(), metadata.size());
    for (const std::string& record : metadata) bytes += record;
    for (const std::string& record : tensors) bytes += record;
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
    return bytes + data;
  }
};

}  // namespace npumoe
