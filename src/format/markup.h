// SPDX-License-Identifier: Apache-2.0
// Text of files and flags as character data of SVG and HTML.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace npumoe {

// Printable(text, limit_bytes) with & < > and both quotes as entities: safe between tags and in quoted attributes.
std::string EscapedMarkup(std::string_view text, size_t limit_bytes = 120);

}  // namespace npumoe
