// SPDX-License-Identifier: Apache-2.0
// The machine: the line of benchmarks, and what `npumoe doctor` shows.
#pragma once

#include <cstdint>
#include <string>

#include "npumoe/engine.h"

namespace npumoe {

std::string CpuName();   // "AMD EPYC 9R14"; "unknown CPU" where the system does not tell
std::string OsName();    // "Linux 6.1.0 x86_64"
std::string ProgramPath();  // of this program's file; empty where the system does not tell
uint64_t MemoryBytes();  // of the machine; 0 where the system does not tell, like the next two
uint64_t PageBytes();
uint32_t Cores();  // that are online

// What the kernels of this build use here: "AVX3_DL", "NEON with Accelerate".
std::string SimdAndBlas(const BuildInfo& build);

}  // namespace npumoe
