// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "engine/system.h"

namespace npumoe {

uint64_t PeakResidentBytes() {
  struct rusage usage = {};
  return ::getrusage(RUSAGE_SELF, &usage) == 0 ? static_cast<uint64_t>(usage.ru_maxrss) * 1024 : 0;  // counts KiB
}

std::string ChipName() { return {}; }

ProcessUse GetProcessUse() { return {}; }

uint32_t CoreCount() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace npumoe
