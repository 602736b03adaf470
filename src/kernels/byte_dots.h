// SPDX-License-Identifier: Apache-2.0
// Whether the CPU has the dot and matrix products of bytes that Highway's targets do not tell of.
#pragma once

namespace npumoe {

// AVX-VNNI (x86 without AVX-512), or Arm's dotprod extension; on Linux with Clang the latter only if the build is for
// CPUs with it (-march=armv8.2-a+dotprod).
bool HasByteDots();

// Arm's i8mm extension (Apple M2, Neoverse V1 and later): products of 2x8 and 8x2 bytes, twice as many at once as dot
// products. Only where HasByteDots, too.
bool HasByteMatrices();

// For tests and benchmarks: from now on HasByteDots (and with it HasByteMatrices) or HasByteMatrices is false (true: as
// the CPU is). No kernel may be running.
void AllowByteDots(bool allowed);
void AllowByteMatrices(bool allowed);

}  // namespace npumoe
