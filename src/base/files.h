// SPDX-License-Identifier: Apache-2.0
// Small whole-file reads and writes that cannot leave half a file behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include "npumoe/result.h"

namespace npumoe {

// The whole file as bytes. Fails with kNotFound, kIo, or kOutOfMemory above `limit_bytes`.
Result<std::string> ReadFile(const std::string& path, size_t limit_bytes = size_t{1} << 30);

// Writes `path` through a temporary file in the same folder and a rename. On failure nothing is left.
Status WriteFileAtomic(const std::string& path, std::string_view bytes);

// A file, or a folder for what it will hold, that is of no use until more is done: removed at the end of its life, or of
// the program (RemoveUnfinishedFiles), unless Keep was called. A folder that holds anything else stays.
class UnfinishedPath {
 public:
  UnfinishedPath(std::string path, bool is_folder);
  UnfinishedPath(UnfinishedPath&& other) noexcept;
  UnfinishedPath& operator=(UnfinishedPath&&) = delete;
  ~UnfinishedPath();
  void Keep();

 private:
  std::string path_;  // empty: kept
  int slot_ = -1;     // among those that RemoveUnfinishedFiles knows
};

// The same for files too large for memory: append, then Commit. Without Commit the destructor removes the
// temporary file. One thread at a time.
class AtomicFile {
 public:
  static Result<AtomicFile> Create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  Status Append(std::span<const std::byte> bytes);
  Status Append(std::string_view bytes);
  Status AppendZeros(uint64_t n_bytes);
  uint64_t size_bytes() const { return size_bytes_; }
  Status Commit();

 private:
  AtomicFile(std::FILE* file, std::string path, std::string temporary);
  std::FILE* file_ = nullptr;
  std::string path_;
  std::string temporary_;  // empty: the null device, written to as it is
  int slot_ = -1;          // among those that RemoveUnfinishedFiles knows
  uint64_t size_bytes_ = 0;
};

}  // namespace npumoe
