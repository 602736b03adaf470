// SPDX-License-Identifier: Apache-2.0
// Names from files, made safe for one-line messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace npumoe {

// `bytes` with control characters, invalid UTF-8, bidirectional overrides and backslashes written as \xNN, and with
// "..." after about `limit_bytes`. Other UTF-8 passes through.
std::string Printable(std::string_view bytes, size_t limit_bytes = 100);

inline constexpr size_t kMaxPathInMessage = 1000;  // bytes, for Printable

}  // namespace npumoe
