// SPDX-License-Identifier: Apache-2.0
// y = x * W^T for bfloat16 weights with x rounded to bfloat16, on CPUs with AVX512-BF16.
//
// Definition. x is rounded to nearest even, 8 bits of significand. K is cut into equal pieces of at most kBf16Piece,
// whole 32 elements each but the last; a piece is a list of words of two elements. Where all weight rows begin `lead`
// elements behind a cache line (LeadOf in bf16_strip.cc: whole words, and only if K is a multiple of 32) the list is
// turned so that the last lead / 2 words come first. Word i is then summed by vdpbf16ps in f32 accumulator i % 16, each
// from zero and in ascending order, and the accumulators are added together as SumLanes of tile-inl.h does it; y is the
// sum of the pieces, in ascending order. The same bits for every way of computing it (many rows or one, any other
// rows); the same weights elsewhere in a cache line may differ by f32 rounding.
//
// Error: 2^-9 |x w| per product for the rounding of x, unrelated between elements; sums as any f32 sum of K terms.
// Subnormal numbers of x and w count as zero.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/activations.h"
#include "kernels/strip.h"

namespace npumoe {

// Whether RunBf16Strips takes weights of this type, on the CPU and SIMD target in use.
bool HasBf16Strip(DType dtype, Activations activations);

// Most rows of x and most weight rows per call; multiples of the steps are best. See integer_strip.h.
inline constexpr size_t kBf16PanelRows = 96;
inline constexpr size_t kBf16PanelStep = 3;
inline constexpr size_t kMaxBf16StripRows = 2048;
inline constexpr size_t kBf16StripStep = 8;

// Most of K that is multiplied at a time: 8 weight rows of it are 32 KiB of a first-level cache of 48 KiB.
inline constexpr size_t kBf16Piece = 2048;

// A product of few rows of x waits for its weights, one of many leaves memory idle: they are multiplied in turn. So many
// rows are few; a group has so many products at most, whose x together have so many rows (144 of 2048 elements are
// 590 KiB of a second-level cache of 1 MiB). Measured: with 20 or 31 rows as few ones 1 to 3 % slower; 112, 176 or 192
// rows in a group up to 2 % slower.
inline constexpr size_t kBf16FewRows = 15;
inline constexpr size_t kMaxBf16Group = 8;
inline constexpr size_t kBf16GroupRows = 144;

// Scratch of RunBf16Strips in floats, for K up to `max_inner`; 64-byte aligned.
size_t Bf16ScratchFloats(size_t max_inner);

// As RunIntegerStrip, for one product or for a group: 8 weight rows of each in turn. All have the same K and n_rows, the
// first one has the most rows of x and the scratch for all. One that is alone has at most kBf16PanelRows.
void RunBf16Strips(std::span<const StripArgs> group, bool prepared);

}  // namespace npumoe
