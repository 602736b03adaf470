// SPDX-License-Identifier: Apache-2.0
#include <libproc.h>
#include <sys/resource.h>
#include <sys/sysctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>

#include "engine/system.h"

namespace npumoe {

uint64_t PeakResidentBytes() {
  struct rusage usage = {};
  return ::getrusage(RUSAGE_SELF, &usage) == 0 ? static_cast<uint64_t>(usage.ru_maxrss) : 0;  // counts bytes
}

std::string ChipName() {
  std::array<char, 128> name{};
  size_t size = name.size() - 1;
  return ::sysctlbyname("machdep.cpu.brand_string", name.data(), &size, nullptr, 0) == 0 ? name.data() : "";
}

ProcessUse GetProcessUse() {
  ProcessUse use;
  rusage_info_v6 info = {};
  if (::proc_pid_rusage(::getpid(), RUSAGE_INFO_V6, reinterpret_cast<rusage_info_t*>(&info)) != 0) return use;
  // 0: not counted on this machine.
  if (info.ri_energy_nj > 0) use.joules = static_cast<double>(info.ri_energy_nj) * 1e-9;
  if (info.ri_cycles > 0) use.cpu_cycles = info.ri_cycles;
  return use;
}

uint32_t CoreCount() { return std::max(1u, std::thread::hardware_concurrency()); }

}  // namespace npumoe
