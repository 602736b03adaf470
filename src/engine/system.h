// SPDX-License-Identifier: Apache-2.0
// What the operating system says about this process and machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace npumoe {

uint64_t PeakResidentBytes();    // of this process so far
uint64_t PhysicalMemoryBytes();  // of the machine
std::string ChipName();          // "Apple M2 Max"; empty where there is none with an NPU of ours
uint32_t CoreCount();            // cores this process may use

// What the system says this process has used so far; empty where it does not say (Linux).
struct ProcessUse {
  std::optional<double> joules;
  std::optional<uint64_t> cpu_cycles;
};
ProcessUse GetProcessUse();

}  // namespace npumoe
