// SPDX-License-Identifier: Apache-2.0
// What the operating system says about this process and machine.
#pragma once

#include <cstdint>

namespace npumoe {

uint64_t PeakResidentBytes();    // of this process so far
uint64_t PhysicalMemoryBytes();  // of the machine
uint32_t CoreCount();            // cores this process may use

}  // namespace npumoe
