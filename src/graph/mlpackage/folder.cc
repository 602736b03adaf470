// SPDX-License-Identifier: Apache-2.0
#include "graph/mlpackage/folder.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/folder_lock.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;

// A name beside `path` that nothing has. Process ids repeat across containers that share a folder.
Result<std::string> MakeBeside(const std::string& path, const char* what) {
  std::error_code error;
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string name = fmt::format("{}{}{}", path, what, ::getpid());
    if (attempt > 0) name += fmt::format(".{}", attempt);
    if (fs::create_directory(name, error)) return name;
    if (error) break;
  }
  return MakeError(Code::kIo, "{}: cannot write: {}", path, error ? error.message() : "no free temporary name");
}

}  // namespace

void AtomicFolder::RemoveLeftovers(const std::string& path) {
  constexpr auto kYoung = std::chrono::seconds(10);
  const fs::path whole(path);
  const std::string prefix = whole.filename().string() + ".tmp";
  const fs::path parent = whole.has_parent_path() ? whole.parent_path() : fs::path(".");
  std::vector<std::string> left;
  std::error_code error;
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    if (!at->path().filename().string().starts_with(prefix)) continue;
    std::error_code ignored;
    const auto changed = fs::last_write_time(at->path(), ignored);
    if (ignored || fs::file_time_type::clock::now() - changed < kYoung) continue;
    if (IsFree(at->path())) left.push_back(at->path());
  }
  for (const std::string& folder : left) {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
}

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
  RemoveLeftovers(path);
  NM_TRY_VAR(std::string temporary, MakeBeside(path, ".tmp"));
  const int lock = OpenFolder(temporary);
  if (lock >= 0) static_cast<void>(LockDescriptor(lock, LOCK_EX | LOCK_NB));
  return AtomicFolder(path, std::move(temporary), lock);
}

AtomicFolder::AtomicFolder(AtomicFolder&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      lock_(std::exchange(other.lock_, -1)) {}

AtomicFolder::~AtomicFolder() {
  std::error_code error;
  if (!temporary_.empty()) fs::remove_all(temporary_, error);
  if (lock_ >= 0) ::close(lock_);
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
