// SPDX-License-Identifier: Apache-2.0
// Memory in pages of megabytes instead of kilobytes: fewer address translations.
#pragma once

#include <cstddef>

namespace npumoe {

// Asks the system to back [data, data + n_bytes) by huge pages as far as whole ones lie in it, when it is first
// touched. A wish: nothing where there are none.
void PreferHugePages(const void* data, size_t n_bytes);

}  // namespace npumoe
