// SPDX-License-Identifier: Apache-2.0
// What POSIX says; the rest is in system_linux.cc and system_apple.cc.
#include "engine/system.h"

#include <unistd.h>

namespace npumoe {

uint64_t PhysicalMemoryBytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page_bytes = ::sysconf(_SC_PAGE_SIZE);
  return pages > 0 && page_bytes > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes) : 0;
}

}  // namespace npumoe
