// SPDX-License-Identifier: Apache-2.0
#include "engine/system.h"

#include <sys/resource.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <libproc.h>
#include <sys/sysctl.h>
#endif

#include <algorithm>
#include <array>
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

std::string ChipName() {
#if defined(__APPLE__)
  std::array<char, 128> name{};
  size_t size = name.size() - 1;
  if (::sysctlbyname("machdep.cpu.brand_string", name.data(), &size, nullptr, 0) == 0) return name.data();
#endif
  return {};
}

ProcessUse GetProcessUse() {
  ProcessUse use;
#if defined(__APPLE__)
  rusage_info_v6 info = {};
  if (::proc_pid_rusage(::getpid(), RUSAGE_INFO_V6, reinterpret_cast<rusage_info_t*>(&info)) == 0) {
    if (info.ri_energy_nj > 0) use.joules = static_cast<double>(info.ri_energy_nj) * 1e-9;  // 0: not counted here
    if (info.ri_cycles > 0) use.cpu_cycles = info.ri_cycles;
  }
#endif
  return use;
}

uint32_t CoreCount() {
#if defined(__linux__)
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace npumoe
