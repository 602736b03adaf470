// SPDX-License-Identifier: Apache-2.0
// safetensors reader (one file or a sharded Hugging Face folder) and writer. F32, F16, BF16 tensors.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "tensor/tensor.h"

namespace npumoe {

struct SafetensorsContents {
  // Borrowed from the bytes; the format does not align the data to its elements. A zero extent is allowed.
  std::map<std::string, TensorView, std::less<>> tensors;
  std::map<std::string, std::string, std::less<>> metadata;
};

// Tensors of other dtypes are an error that names tensor and dtype, after their offsets were checked. Rank <= 4.
Result<SafetensorsContents> ParseSafetensors(std::span<const std::byte> bytes, std::string_view name);

// Immutable after construction; views live as long as the folder (moves keep them valid). Tensor data is aligned for
// its elements; a tensor that is not so in its file is copied.
class SafetensorsFolder {
 public:
  // Reads `folder/model.safetensors.index.json` and its shards, or `folder/model.safetensors`. A tensor of the
  // index that its shard lacks, a missing shard, or a tensor in two shards is an error.
  static Result<SafetensorsFolder> Open(const std::string& folder);

  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const TensorView* FindTensor(std::string_view name) const;
  size_t size_bytes() const;

 private:
  Status AddFile(const std::string& path, std::span<const std::string> wanted);

  std::vector<MappedFile> files_;
  std::vector<Tensor> copies_;  // of tensors whose data is not aligned in the file
  std::map<std::string, TensorView, std::less<>> tensors_;
};

// A tensor to write; `data` has ByteSize bytes. dtype kF32, kF16 or kBF16.
struct NamedTensor {
  std::string name;
  TensorView tensor;
};

// Writes through a temporary file and a rename. The same tensors in any order give the same bytes; names must be
// unique UTF-8.
Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors);

}  // namespace npumoe
