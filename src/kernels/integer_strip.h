// SPDX-License-Identifier: Apache-2.0
// y = x * W^T with x rounded to integers of 8 or 16 bits, for block formats: on x86 with
// AVX2, AVX-VNNI or AVX-512 VNNI, and on Arm with the dotprod extension, or for three rows of x and more with i8mm.
//
// Definition. A group of 32 elements of a row of x becomes integers with one scale: q = round(x * (L / max|x|)) with
// L = 127 or 32639, and s = max|x| / L (for 8 bits with the two lowest bits of its mantissa cleared). A weight of a
// block is d * (u - z) + m with an unsigned code u of at most 8 bits, a zero z of the format, and a scale d and offset
// m per group g of 32 or 16 elements. Then
//   y = sum over g, in ascending order, of fma(float(sum of q * (u - z)) * s, d, .), then fma(s * sum of q, m, .),
// one f32 accumulator per output. The integer sums are exact in any order, so every way of computing them (rows in
// lanes, one row or many, other instructions, another CPU) gives the same bits.
//
// Error of x: at most about s / 2 per element, max|x of the group| / 254 or / 65278; groups whose largest magnitude is
// below 1e-30 count as zero. Error of the sum: about three roundings per group. A group with a NaN or an infinity makes
// its row NaN; magnitudes above 1e33 may overflow to infinity or NaN.
#pragma once

#include <cstddef>

#include "kernels/activations.h"
#include "kernels/strip.h"

namespace npumoe {

// Whether RunIntegerStrip knows the format on the SIMD target in use.
bool HasIntegerStrip(DType dtype);

// Most rows of x and most weight rows per call; multiples of the steps are best. A call prepares
// its activations once for all its weight rows, and decodes its weights once for all its activations.
// Scratch is at most 96 rows * K * 2 bytes of 8-bit activations, or 48 rows * K * 3 bytes of 16-bit ones.
constexpr size_t IntegerPanelRows(Activations activations) { return activations == Activations::k8Bits ? 96 : 48; }
inline constexpr size_t kIntegerPanelStep = 6;
inline constexpr size_t kMaxIntegerStripRows = 2048;
inline constexpr size_t kIntegerStripStep = 32;

// Scratch of RunIntegerStrip in floats, for K up to `max_inner`; 64-byte aligned.
size_t IntegerScratchFloats(size_t max_inner, Activations activations);

// As RunStrip, with x.rows up to IntegerPanelRows and n_rows up to kMaxIntegerStripRows. `prepared`: the last call with
// this scratch had the same x, activations and type of weights, and what it made of x is used again.
void RunIntegerStrip(const StripArgs& args, Activations activations, bool prepared);

}  // namespace npumoe
