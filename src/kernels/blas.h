// SPDX-License-Identifier: Apache-2.0
// The system's BLAS, where the build has one (CMake's NPUMOE_BLAS; on macOS Accelerate, through which alone programs
// reach the matrix units of Apple's CPUs).
#pragma once

#include <cstddef>
#include <string>

#include "tensor/tensor.h"

namespace npumoe {

// Whether BlasMultiply may be called.
bool HasBlas();

// For people: "Accelerate", "OpenBLAS 0.3.21", "BLAS" of a library that does not tell its name; empty without one.
std::string BlasName();

// For tests and benchmarks: from now on HasBlas is false (true: as the build is). No kernel may be running.
void AllowBlas(bool allowed);

// y = x * w^T, or y += x * w^T, in f32 on the calling thread alone, where the library lets itself be told so: OpenBLAS
// does, for the whole process; Accelerate since macOS 15. x is [M, K], w [y.cols, K] with `w_stride` floats from one
// row to the next, y [M, y.cols]; all have at least one row and one column, and extents and strides below 2^31.
void BlasMultiply(ConstMatView x, const float* w, size_t w_stride, bool add, MatView y);

}  // namespace npumoe
