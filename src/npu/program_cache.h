// SPDX-License-Identifier: Apache-2.0
// Compiled programs on disk, made once and found again by every process: a folder per key. An entry appears whole or not
// at all, whatever is killed and when; the least recently used ones go when the limit is passed, but never one in use.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/temporary_folder.h"
#include "npumoe/programs.h"

namespace npumoe {

// Names in the folder of caches.
inline constexpr std::string_view kProgramsFolder = "programs", kMeasuredSpecFile = "npu_spec.json";

// An entry in use: while this lives, nobody evicts it.
class CacheLease {
 public:
  CacheLease(std::string folder, std::string failure, int descriptor)
      : folder_(std::move(folder)), failure_(std::move(failure)), descriptor_(descriptor) {}
  CacheLease(CacheLease&& other) noexcept;
  CacheLease& operator=(CacheLease&& other) noexcept;
  ~CacheLease();

  const std::string& folder() const { return folder_; }  // what was made lies here
  // Why the program cannot be used; empty for one that can.
  const std::string& failure() const { return failure_; }

 private:
  friend class ProgramCache;
  std::string folder_, failure_;
  int descriptor_ = -1;  // of the folder, locked; -1 where nobody else sees it
};

// Any number of threads and processes.
class ProgramCache {
 public:
  // Makes `folder` if it is missing, and removes what killed processes left. A folder that cannot be written is read all
  // the same; what is made then lies in a temporary folder of this object (see `note`). Without `folder`: only there.
  ProgramCache(std::string folder, uint64_t max_bytes);
  ProgramCache(const ProgramCache&) = delete;
  ProgramCache& operator=(const ProgramCache&) = delete;

  // Why entries are not kept; empty when they are.
  const std::string& note() const { return note_; }
  const std::string& folder() const { return folder_; }

  // Marks the entry as used. Nothing for an unknown key and for an entry that is damaged, which is removed.
  std::optional<CacheLease> Find(std::string_view key);

  // Lets `make` fill a new folder and keeps it under `key`. When somebody else was faster, theirs counts. On failure of
  // `make` or of the disk nothing is left.
  Result<CacheLease> Make(std::string_view key, std::string_view what,
                          const std::function<Status(const std::string& folder)>& make);

  // Keeps the verdict that the program cannot be used, so that nobody tries again.
  Status MakeFailure(std::string_view key, std::string_view what, std::string_view failure);

  // Least recently used first, with folders that are no entry ("damaged").
  std::vector<CachedProgram> List() const;
  // Removes entries that are not in use and that `wanted` says.
  RemovedPrograms Remove(const std::function<bool(const CachedProgram&)>& wanted);

 private:
  std::string Path(std::string_view name) const;
  Result<CacheLease> MakePrivate(std::string_view key, std::string_view what, std::string_view failure,
                                 const std::function<Status(const std::string& folder)>& make);
  Result<CacheLease> Publish(std::string_view key, std::string_view what, std::string_view failure,
                             const std::function<Status(const std::string& folder)>& make);
  std::optional<CachedProgram> Read(const std::string& folder, std::string_view key) const;
  void Sweep() const;
  bool Discard(const std::string& path) const;
  void Trim(std::string_view kept);

  const std::string folder_;
  const uint64_t max_bytes_;
  bool writable_ = false;
  std::string note_;
  mutable std::mutex mutex_;
  TemporaryFolder scratch_;                              // of this object, made when first needed
  std::map<std::string, std::string, std::less<>> own_;  // key -> failure, of entries in scratch_
};

}  // namespace npumoe
