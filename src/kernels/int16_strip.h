// SPDX-License-Identifier: Apache-2.0
// y = x * W^T with x rounded to 16-bit integers, for block formats on CPUs with AVX-512 VNNI.
//
// Definition. A group of 32 elements of a row of x becomes integers with one scale: s = max|x| / 32639,
// q = round(x / s). A weight of a block is d * (u - z) + m with an unsigned code u of at most 8 bits, a zero z of the
// format, and a scale d and offset m per group g of 32 or 16 elements. Then
//   y = sum over g, in ascending order, of fma(float(sum of q * (u - z)) * s, d, .), then fma(s * sum of q, m, .),
// one f32 accumulator per output. The integer sums are exact in any order, so every way of computing them (rows in
// lanes, one row or many, other instructions) gives the same bits.
//
// Error of x: at most s / 2 = max|x of the group| / 65278 per element, 2^8 times smaller than with 8-bit activations;
// groups whose largest magnitude is below 1e-30 count as zero. Error of the sum: about three roundings per group.
// A group with a NaN or an infinity makes its row NaN; magnitudes above 1e34 may overflow to infinity.
#pragma once

#include <cstddef>

#include "kernels/strip.h"

namespace npumoe {

// Whether RunInt16Strip knows the format on the SIMD target in use.
bool HasInt16Strip(DType dtype);

// Most rows of x and most weight rows per call; multiples of the steps are best. A call prepares
// its activations once for all its weight rows, and decodes its weights once for all its activations.
// Scratch is 48 rows * K * 3 bytes. 96 rows are 1 to 2 % faster, 24 rows 3 to 7 % slower (measured, K = 768 and 2048).
inline constexpr size_t kInt16PanelRows = 48;
inline constexpr size_t kInt16PanelStep = 6;
inline constexpr size_t kMaxInt16StripRows = 768;
inline constexpr size_t kInt16StripStep = 32;

// Scratch of RunInt16Strip in floats, for K up to `max_inner`; 64-byte aligned.
size_t Int16ScratchFloats(size_t max_inner);

// As RunStrip, with x.rows up to kInt16PanelRows and n_rows up to kMaxInt16StripRows.
void RunInt16Strip(const StripArgs& args);

}  // namespace npumoe
