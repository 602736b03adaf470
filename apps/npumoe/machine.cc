// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#ifdef __APPLE__
#include <mach-o/dyld.h>
#include <sys/sysctl.h>
#endif

#include "apps/npumoe/text.h"

namespace npumoe {

std::string CpuName() {
#ifdef __APPLE__
  char name[256] = "";
  size_t size = sizeof name;
  if (sysctlbyname("machdep.cpu.brand_string", name, &size, nullptr, 0) == 0) return OneLine(name);
#endif
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return OneLine(line.substr(colon + 2));
  }
  return "unknown CPU";
}

namespace {

uint64_t SystemNumber(int name) { return static_cast<uint64_t>(std::max(0L, sysconf(name))); }

}  // namespace

uint64_t MemoryBytes() { return SystemNumber(_SC_PHYS_PAGES) * SystemNumber(_SC_PAGESIZE); }
uint64_t PageBytes() { return SystemNumber(_SC_PAGESIZE); }
uint32_t Cores() { return static_cast<uint32_t>(SystemNumber(_SC_NPROCESSORS_ONLN)); }

std::string ProgramPath() {
#ifdef __APPLE__
  char path[4096] = "";
  uint32_t size = sizeof path;
  return _NSGetExecutablePath(path, &size) == 0 ? path : "";
#else
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string() : path.string();
#endif
}

std::string OsName() {
  utsname name = {};
  if (uname(&name) != 0) return "unknown system";
  return OneLine(std::string(name.sysname) + " " + name.release + " " + name.machine);
}

std::string SimdAndBlas(const BuildInfo& build) {
  return build.blas.empty() ? build.simd_target : build.simd_target + " with " + build.blas;
}

}  // namespace npumoe
