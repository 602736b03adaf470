// SPDX-License-Identifier: Apache-2.0
#include "engine/system.h"

#include <sys/resource.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <thread>

namespace npumoe {

uint64_t PeakResidentBytes() {
  struct rusage usage = {};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
#if defined(__linux__)
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;  // Linux counts KiB, the others bytes
#else
  return static_cast<uint64_t>(usage.ru_maxrss);
#endif
}

uint64_t PhysicalMemoryBytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page_bytes = ::sysconf(_SC_PAGE_SIZE);
  return pages > 0 && page_bytes > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes) : 0;
}

uint32_t CoreCount() {
#if defined(__linux__)
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace npumoe
