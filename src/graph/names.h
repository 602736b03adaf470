// SPDX-License-Identifier: Apache-2.0
// Names that MIL accepts.
#pragma once

#include <string>
#include <string_view>

namespace npumoe {

// [A-Za-z_][A-Za-z0-9_]*, and not a keyword of MIL.
bool IsLegalName(std::string_view name);

// The name with every other character replaced by '_', made legal.
std::string LegalName(std::string_view name);

// Text from a hostile file for a one-line message: anything but printable ASCII becomes '?', and what is long is cut.
std::string ShownName(std::string_view name, size_t most_shown = 60);

}  // namespace npumoe
