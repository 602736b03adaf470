// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "kernels/blas.h"
#include "kernels/matmul.h"

namespace npumoe {
namespace {

double Median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string ChipName() {
#if defined(__APPLE__)
  char name[128] = {};
  size_t size = sizeof(name) - 1;
  if (sysctlbyname("machdep.cpu.brand_string", name, &size, nullptr, 0) == 0) return name;
#else
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
#endif
  return "unknown chip";
}

}  // namespace

Spread SpreadOf(std::vector<double> values) {
  if (values.empty()) return {};
  const double median = Median(values);
  for (double& value : values) value = std::abs(value - median);
  return {median, Median(values)};
}

double Now(Clock clock) {
  timespec now = {};
  clock_gettime(clock == Clock::kWall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Seconds(Clock clock, const std::function<void()>& call) {
  const double start = Now(clock);
  call();
  return Now(clock) - start;
}

std::string MachineLine(size_t n_threads) {
  utsname os = {};
  uname(&os);
  return fmt::format("{}, {} {}, {}, commit {}, {}, {} threads, {}, real", ChipName(), os.sysname, os.release,
                     __VERSION__, NPUMOE_COMMIT, SimdTargetName() + (HasBlas() ? " with " + BlasName() : ""), n_threads,
                     ClockFor(n_threads) == Clock::kWall ? "wall time" : "CPU time");
}

void RequireRelease() {
#if !defined(NDEBUG)
  std::fputs("built without NDEBUG: figures would mislead; use the release preset\n", stderr);
  std::exit(1);
#endif
}

}  // namespace npumoe
