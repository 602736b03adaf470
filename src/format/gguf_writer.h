// SPDX-License-Identifier: Apache-2.0
// GGUF v3 writer: declare metadata and tensors, then stream the tensor bytes in the declared order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "tensor/tensor.h"

namespace npumoe {

// One thread at a time. Keys keep the order of their Set calls. Set calls and AddTensor come before Begin. The same
// calls give the same bytes. Keys must be unique and not empty (NM_CHECK).
class GgufWriter {
 public:
  void SetUint(std::string_view key, uint32_t value);  // GGUF u32
  void SetFloat(std::string_view key, float value);    // GGUF f32
  void SetBool(std::string_view key, bool value);
  void SetString(std::string_view key, std::string_view value);
  void SetStrings(std::string_view key, std::span<const std::string> values);
  void SetInts(std::string_view key, std::span<const int32_t> values);  // GGUF array of i32
  void SetUint16(std::string_view key, uint16_t value);                 // split.no and split.count
  void SetInt(std::string_view key, int32_t value);                     // GGUF i32; split.tensors.count
  void SetFloats(std::string_view key, std::span<const float> values);

  // Shapes outermost first; the file stores them innermost first. Names must be unique (NM_CHECK). A shape or name
  // that the format cannot hold is reported by Begin.
  void AddTensor(std::string_view name, DType dtype, const Shape& shape);

  // Opens a temporary file beside `path` and writes the header. Then WriteTensorBytes for each tensor in order, in one
  // or several pieces; a piece does not cross into the next tensor. Finish checks that all bytes came, and renames.
  // A writer destroyed before Finish leaves nothing behind.
  Status Begin(const std::string& path);
  Status WriteTensorBytes(std::span<const std::byte> bytes);
  Status Finish();

 private:
  struct TensorRecord {
    std::string name;
    DType dtype;
    Shape shape;
    uint64_t offset;      // from the start of the data section
    uint64_t size_bytes;  // unpadded
  };
  void BeginRecord(std::string_view key, uint32_t type);

  std::string path_;
  std::optional<Error> first_error_;
  std::set<std::string, std::less<>> keys_, names_;
  std::string metadata_;     // encoded key-value records
  uint64_t data_bytes_ = 0;  // padded size of the tensors declared so far
  uint64_t n_metadata_ = 0;
  std::vector<TensorRecord> tensors_;
  std::optional<AtomicFile> file_;
  size_t current_ = 0;          // tensor being written
  uint64_t written_bytes_ = 0;  // of the current tensor
};

}  // namespace npumoe
