// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/machine.h"

#include <sys/utsname.h>

#include <fstream>

#ifdef __APPLE__
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

std::string OsName() {
  utsname name = {};
  if (uname(&name) != 0) return "unknown system";
  return OneLine(std::string(name.sysname) + " " + name.release + " " + name.machine);
}

}  // namespace npumoe
