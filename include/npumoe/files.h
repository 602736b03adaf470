// SPDX-License-Identifier: Apache-2.0
// Writing results: plans, statistics, pictures.
#pragma once

#include <string>
#include <string_view>

#include "npumoe/result.h"

namespace npumoe {

// Writes `path` through a temporary file beside it and a rename, so that whatever fails (a full disk, a folder that
// nobody may write to) an older file stays whole and nothing half is left. The folder beside a model (*.npumoe) is made
// when only that is missing. kIo says why not; devices (but the null device) and pipes are
// refused.
Status WriteOutputFile(const std::string& path, std::string_view bytes);

// Removes the temporary files of all outputs that are being written, in every thread, and the finished parts of those
// that need more. Async-signal-safe: for a handler that ends the program at once.
void RemoveUnfinishedFiles() noexcept;

// Whether WriteOutputFile could begin; nothing is left. An empty path is fine.
Status CheckOutputFile(const std::string& path);

}  // namespace npumoe
