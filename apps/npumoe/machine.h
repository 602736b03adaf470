// SPDX-License-Identifier: Apache-2.0
// The machine line of benchmarks.
#pragma once

#include <string>

namespace npumoe {

std::string CpuName();  // "AMD EPYC 9R14"; "unknown CPU" where the system does not tell
std::string OsName();   // "Linux 6.1.0 x86_64"

}  // namespace npumoe
