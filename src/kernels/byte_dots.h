// SPDX-License-Identifier: Apache-2.0
// Whether the CPU has the dot products of bytes that Highway's targets do not tell of.
#pragma once

namespace npumoe {

// AVX-VNNI (x86 without AVX-512), or Arm's dotprod extension; on Linux with Clang the latter only if the build is for
// CPUs with it (-march=armv8.2-a+dotprod).
bool HasByteDots();

// For tests and benchmarks: from now on HasByteDots is false (true: as the CPU is). No kernel may be running.
void AllowByteDots(bool allowed);

}  // namespace npumoe
