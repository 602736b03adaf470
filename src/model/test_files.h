// SPDX-License-Identifier: Apache-2.0
// Helpers of this folder's tests: scratch folders and the material that lies beside the repository.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace npumoe {

// A folder of its own under the temporary folder, removed with everything in it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = testing::TempDir() + "npumoe_model_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string File(const std::string& name) const { return path_ + "/" + name; }
  bool IsEmpty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

inline std::string SharedFile(const std::string& name) {
  return std::string(NM_SOURCE_DIR) + "/../shared/data/" + name;
}

}  // namespace npumoe

#define NM_SKIP_WITHOUT(path) \
  if (!std::filesystem::exists(path)) GTEST_SKIP() << (path) << " is not there"
