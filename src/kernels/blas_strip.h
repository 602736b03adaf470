// SPDX-License-Identifier: Apache-2.0
// y = x * W^T in f32 for many activations, through the system's BLAS (blas.h): a strip of weights is decoded to f32 as
// in strip.h, and multiplied by one call of the library per piece of K.
//
// The order of the sums is the library's, so that a row's bits may depend on how many rows it comes with. They do not
// depend on threads or other jobs: the same rows are always multiplied by the same calls.
#pragma once

#include <cstddef>

#include "kernels/strip.h"

namespace npumoe {

// Fewest activations that go to the library. With OpenBLAS and the same instructions (AVX2) it takes our kernel's time
// at 32 rows of F32 weights, see docs/benchmarks.md; for Apple's matrix units, which multiply 16x16 at a time, assumed.
inline constexpr size_t kBlasRows = 32;

// Weight rows of a strip, and most of K at a time: 192 * 1024 floats are 768 KiB of a second-level cache.
inline constexpr size_t kBlasStripRows = 192;
inline constexpr size_t kMaxBlasInner = 1024;

// Whether RunBlasStrip is to compute a product of so many activations that would else be RunStrip's.
bool HasBlasStrip(size_t n_rows);

// f32 values that RunBlasStrip needs as scratch, 64-byte aligned. 0 without a BLAS.
size_t BlasScratchFloats();

// As RunStrip, with n_rows up to kBlasStripRows.
void RunBlasStrip(const StripArgs& args);

}  // namespace npumoe
