// SPDX-License-Identifier: Apache-2.0
// GGUF v2/v3 reader: metadata and tensor views over a memory map, split files merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/mapped_file.h"
#include "tensor/tensor.h"

namespace npumoe {

// Arrays hold one element type; arrays of arrays are refused by the parser. Small integers widen to 64 bits.
using GgufArray = std::variant<std::vector<uint64_t>, std::vector<int64_t>, std::vector<double>, std::vector<bool>,
                               std::vector<std::string_view>>;  // strings borrow from the file's bytes
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;

// The header of one file: pure data over borrowed bytes.
struct GgufContents {
  uint32_t version = 0;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::map<std::string, TensorView, std::less<>> tensors;  // shapes outermost first; data borrowed from the bytes
  size_t data_offset = 0;
};

// `name` is the subject of error messages (usually the path). Every tensor is checked to lie inside `bytes`.
// Memory used is bounded by a small multiple of bytes.size().
Result<GgufContents> ParseGguf(std::span<const std::byte> bytes, std::string_view name);

// "a bool", "an array": for messages.
std::string_view GgufTypeName(const GgufValue& value);

// Immutable after construction; views live as long as the file (moves keep them valid). Tensor data is aligned for
// its elements (4 bytes for kF32, else 2); the rare tensor that is not so in the file is copied.
class GgufFile {
 public:
  // Opens a file; if it is a split ("...-00001-of-00003.gguf" with split.count), opens and checks all siblings,
  // whichever part `path` names.
  static Result<GgufFile> Open(const std::string& path);

  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }  // of the first split
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }   // of all splits
  const std::string& path() const { return files_.front().path(); }
  size_t size_bytes() const;  // all splits
  uint32_t version() const { return version_; }

  // nullptr when absent.
  const GgufValue* Find(std::string_view key) const;
  const TensorView* FindTensor(std::string_view name) const;

  // Typed getters: kNotFound when absent, kCorruptFile when of another type or out of range (named in the message).
  Result<uint64_t> Uint(std::string_view key, uint64_t max = UINT64_MAX) const;
  Result<double> Float(std::string_view key) const;  // integers are accepted, infinities and NaN are not
  Result<bool> Bool(std::string_view key) const;
  Result<std::string_view> String(std::string_view key) const;

 private:
  Status AddPart(MappedFile file, GgufContents contents);
  Result<const GgufValue*> Need(std::string_view key) const;
  Error WrongType(std::string_view key, const GgufValue& value, std::string_view wanted) const;

  std::vector<MappedFile> files_;
  std::vector<Tensor> copies_;  // of tensors whose data is not aligned in the file
  uint32_t version_ = 0;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

}  // namespace npumoe
