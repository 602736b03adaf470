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

bool DetectDots() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;  // Intel SDM: AVX-VNNI
}
bool DetectMatrices() { return false; }

#elif defined(__APPLE__)

bool HasFeature(const char* name) {
  int has = 0;
  size_t n_bytes = sizeof(has);
  return sysctlbyname(name, &has, &n_bytes, nullptr, 0) == 0 && has != 0;
}
bool DetectDots() { return HasFeature("hw.optional.arm.FEAT_DotProd"); }
bool DetectMatrices() { return HasFeature("hw.optional.arm.FEAT_I8MM"); }

#elif defined(__aarch64__) && (!defined(__clang__) || defined(__ARM_FEATURE_DOTPROD))

// Bits of Linux's arch/arm64/include/uapi/asm/hwcap.h: HWCAP_ASIMDDP, HWCAP2_I8MM.
bool DetectDots() { return (getauxval(AT_HWCAP) >> 20 & 1) != 0; }
bool DetectMatrices() { return (getauxval(AT_HWCAP2) >> 13 & 1) != 0; }

#else

bool DetectDots() { return false; }
bool DetectMatrices() { return false; }

#endif

std::atomic<bool> g_dots_allowed{true};
std::atomic<bool> g_matrices_allowed{true};

}  // namespace

bool HasByteDots() {
  static const bool has = DetectDots();
  return has && g_dots_allowed.load(std::memory_order_relaxed);
}

bool HasByteMatrices() {
  static const bool has = DetectMatrices();
  return has && g_matrices_allowed.load(std::memory_order_relaxed) && HasByteDots();
}

void AllowByteDots(bool allowed) { g_dots_allowed.store(allowed); }
void AllowByteMatrices(bool allowed) { g_matrices_allowed.store(allowed); }

}  // namespace npumoe
