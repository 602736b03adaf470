// SPDX-License-Identifier: Apache-2.0
// A read-only memory map of a file: weights are used where the page cache holds them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "npumoe/result.h"

namespace npumoe {

// Immutable after construction. Views of bytes() live as long as the MappedFile (moves keep them valid).
class MappedFile {
 public:
  // Fails with kNotFound or kIo; an empty file maps to an empty span. Directories are refused.
  static Result<MappedFile> Open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  std::span<const std::byte> bytes_;
  std::string path_;
};

}  // namespace npumoe
