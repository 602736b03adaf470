// SPDX-License-Identifier: Apache-2.0
// Recognises what people save under a model file's name by mistake.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace npumoe {

// "looks like an HTML page", "looks like a Git LFS pointer, not the file it points to", ...; nullopt if nothing known.
std::optional<std::string_view> DescribeForeign(std::span<const std::byte> bytes);

}  // namespace npumoe
