// SPDX-License-Identifier: Apache-2.0
#include "graph/mlpackage/folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;

// A name beside `path` that nothing has. Process ids repeat across containers that share a folder.
Result<std::string> MakeBeside(const std::string& path, const char* what) {
  std::error_code error;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::string name =
        path + what + std::to_string(::getpid()) + (attempt == 0 ? "" : "." + std::to_string(attempt));
    if (fs::create_directory(name, error)) return name;
    if (error) break;
  }
  return MakeError(Code::kIo, "{}: cannot write: {}", path, error ? error.message() : "no free temporary name");
}

}  // namespace

Result<AtomicFolder> AtomicFolder::Create(const std::string& path, const std::string& mark) {
  std::error_code error;
  const auto status = fs::symlink_status(path, error);
  if (fs::exists(status)) {
    const bool replaceable =
        fs::is_directory(status) && (fs::exists(path + "/" + mark, error) || fs::is_empty(path, error));
    if (!replaceable) {
      return MakeError(Code::kIo, "{}: cannot write: exists and is no package", path);
    }
  }
  NM_TRY_VAR(std::string temporary, MakeBeside(path, ".tmp"));
  return AtomicFolder(path, std::move(temporary));
}

AtomicFolder::AtomicFolder(AtomicFolder&& other) noexcept
    : path_(std::move(other.path_)), temporary_(std::exchange(other.temporary_, {})) {}

AtomicFolder::~AtomicFolder() {
  std::error_code error;
  if (!temporary_.empty()) fs::remove_all(temporary_, error);
}

Status AtomicFolder::MakeFolder(const std::string& name) const {
  std::error_code error;
  fs::create_directories(temporary_ + "/" + name, error);
  if (error) return MakeError(Code::kIo, "{}: cannot write: {}", path_, error.message());
  return Ok{};
}

Status AtomicFolder::Commit() {
  NM_CHECK(!temporary_.empty());
  std::error_code error;
  // Works where `path` is free or an empty folder.
  fs::rename(temporary_, path_, error);
  if (!error) {
    temporary_.clear();
    return Ok{};
  }
  if (!fs::is_directory(path_)) return MakeError(Code::kIo, "{}: cannot write: {}", path_, error.message());
  // A full folder cannot be renamed over: the old one steps aside first.
  NM_TRY_VAR(const std::string old, MakeBeside(path_, ".old"));
  fs::rename(path_, old, error);
  if (!error) {
    fs::rename(temporary_, path_, error);
    std::error_code ignored;
    if (error) fs::rename(old, path_, ignored);
  }
  if (error) {
    std::error_code ignored;
    fs::remove(old, ignored);  // only when it is empty
    return MakeError(Code::kIo, "{}: cannot write: {}", path_, error.message());
  }
  temporary_.clear();
  fs::remove_all(old, error);
  return Ok{};
}

}  // namespace npumoe
