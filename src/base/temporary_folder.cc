// SPDX-License-Identifier: Apache-2.0
#include "base/temporary_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/check.h"

namespace npumoe {

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Status TemporaryFolder::Make(std::string_view name) {
  NM_CHECK(path_.empty());
  std::error_code error;
  const auto place = std::filesystem::temp_directory_path(error);
  if (error) return MakeError(Code::kIo, "{}: cannot make a temporary folder: {}", name, error.message());
  std::string pattern = (place / fmt::format("{}-XXXXXX", name)).string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    return MakeError(Code::kIo, "{}: cannot make a temporary folder: {}", pattern, std::strerror(errno));
  }
  path_ = pattern;
  return Ok{};
}

}  // namespace npumoe
