// SPDX-License-Identifier: Apache-2.0
#include "kernels/byte_dots.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>

#include <cstddef>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace npumoe {
namespace {

#if defined(__x86_64__)

bool Detect() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;  // Intel SDM: AVX-VNNI
}

#elif defined(__APPLE__)

bool Detect() {
  int has = 0;
  size_t n_bytes = sizeof(has);
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &n_bytes, nullptr, 0) == 0 && has != 0;
}

#elif defined(__aarch64__) && (!defined(__clang__) || defined(__ARM_FEATURE_DOTPROD))

bool Detect() { return (getauxval(AT_HWCAP) >> 20 & 1) != 0; }  // HWCAP_ASIMDDP

#else

bool Detect() { return false; }

#endif

std::atomic<bool> g_allowed{true};

}  // namespace

bool HasByteDots() {
  static const bool has = Detect();
  return has && g_allowed.load(std::memory_order_relaxed);
}

void AllowByteDots(bool allowed) { g_allowed.store(allowed); }

}  // namespace npumoe
