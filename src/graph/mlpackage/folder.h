// SPDX-License-Identifier: Apache-2.0
// A folder that appears whole or not at all.
#pragma once

#include <string>

#include "npumoe/result.h"

namespace npumoe {

// Filled under a temporary name beside `path`, then renamed. Without Commit the destructor removes it; what a killed
// process left is removed later. One thread at a time.
class AtomicFolder {
 public:
  // `path` may be free, an empty folder, or a folder that holds `mark`, which Commit then replaces; anything else
  // fails.
  static Result<AtomicFolder> Create(const std::string& path, const std::string& mark);
  // Removes folders that processes which are gone were filling for `path`; Create does so, too. One that was touched
  // less than ten seconds ago stays: it may be of a process that has not locked it yet.
  static void RemoveLeftovers(const std::string& path);
  AtomicFolder(AtomicFolder&& other) noexcept;
  AtomicFolder& operator=(AtomicFolder&&) = delete;
  ~AtomicFolder();

  const std::string& temporary() const { return temporary_; }
  Status MakeFolder(const std::string& name) const;  // and its parents; `name` is relative
  Status Commit();

 private:
  AtomicFolder(std::string path, std::string temporary, int lock)
      : path_(std::move(path)), temporary_(std::move(temporary)), lock_(lock) {}
  std::string path_;
  std::string temporary_;  // empty after Commit
  int lock_ = -1;          // on the temporary folder: the system drops it with the process
};

}  // namespace npumoe
