// SPDX-License-Identifier: Apache-2.0
// A folder in the system's place for temporary files.
#pragma once

#include <string>
#include <string_view>

#include "npumoe/result.h"

namespace npumoe {

// Goes, with all that is in it, when this does.
class TemporaryFolder {
 public:
  TemporaryFolder() = default;
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  // Makes it, once: `name` and something that nobody else has. kIo says why not.
  Status Make(std::string_view name);
  const std::string& path() const { return path_; }  // empty until it is made

 private:
  std::string path_;
};

}  // namespace npumoe
