// SPDX-License-Identifier: Apache-2.0
// weight.bin, "blob v2": a header, then per tensor 64 bytes of metadata and its data, everything at multiples of 64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/mapped_file.h"
#include "graph/graph.h"

namespace npumoe {

// The Neural Engine's compiler refuses larger weight files (coremltools pull request 2593).
inline constexpr uint64_t kMaxWeightFileBytes = uint64_t{1} << 31;

// Whether the format has a code for it; bools and strings stay in the model file.
bool HasBlobCode(ElemType elem);

// Lays tensors out and writes them. Equal data of one element type is stored once. Borrows the data until Write.
class BlobWriter {
 public:
  // Offset of the tensor's metadata, which is what a model file names.
  uint64_t Add(ElemType elem, size_t elems, std::span<const std::byte> data);

  bool empty() const { return blobs_.empty(); }
  uint64_t file_bytes() const { return end_; }
  std::string ContentHex() const;  // of everything added, in order
  Status Write(AtomicFile& file) const;

 private:
  struct Blob {
    ElemType elem;
    size_t elems;
    std::span<const std::byte> data;
    uint64_t offset;   // of the metadata
    std::string hash;  // of type and data
  };
  std::vector<Blob> blobs_;
  std::multimap<std::string, size_t> by_hash_;  // index into blobs_
  uint64_t end_ = 64;                           // of the last blob's data, or of the header
};

// Weight files of one package, opened when they are first named. One thread at a time.
class WeightFiles {
 public:
  // Files below `folder`, the one that holds the model file.
  explicit WeightFiles(std::string folder) : folder_(std::move(folder)) {}
  // For tests: one file in memory, borrowed, whatever its name.
  explicit WeightFiles(std::span<const std::byte> only) : memory_(only), in_memory_(true) {}

  // The data of a tensor of `type` whose metadata stand at `offset` of `file` ("@model_path/weights/weight.bin"). Every
  // number of the file is checked against `type` and the file's length. Valid as long as this object.
  Result<std::span<const std::byte>> Read(std::string_view file, uint64_t offset, const ValueType& type);

  uint64_t total_bytes() const { return total_bytes_; }  // of the files opened so far

 private:
  Result<std::span<const std::byte>> Open(std::string_view file);

  std::string folder_;
  std::map<std::string, MappedFile, std::less<>> files_;
  std::span<const std::byte> memory_;
  bool in_memory_ = false;
  uint64_t total_bytes_ = 0;
};

// Whether `path` is a relative one that stays below its folder: components of ordinary characters, none of them "..".
bool IsSafeRelativePath(std::string_view path);

}  // namespace npumoe
