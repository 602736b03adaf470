// SPDX-License-Identifier: Apache-2.0
// Weights as a static graph holds them: fp16 is today's arithmetic, int8 and palettes are storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "graph/builder.h"
#include "moe/plan.h"
#include "tensor/tensor.h"

namespace npumoe {

// Output channels that share a palette, about (see PaletteRows). Groups of 64 stay on the Neural Engine and run as fast
// as one table for all (published: grouped LUT beside int4 LUT, 0.267 and 0.268 ms, M4 Max); tables of 16 entries then
// are 32 bytes for 64 * in / 2 of indices.
inline constexpr size_t kPaletteRows = 64;

// Output channels of a matrix that share one palette: the divisor of `out` nearest to `wanted` by ratio (of equals the
// smaller), since Core ML cuts an axis into equal groups.
size_t PaletteRows(size_t out, size_t wanted = kPaletteRows);

size_t PaletteBits(WeightFormat format);  // of an index; 0 when the format is not a palette

// The constants behind one 1x1 convolution weight [out, in, 1, 1], to be used by any function of the graph.
struct WeightConstant {
  WeightFormat format = WeightFormat::kFp16;
  uint32_t data = kNoConstant;   // fp16 weights, int8, or packed indices
  uint32_t scale = kNoConstant;  // int8: fp16 [out]; palettes: the tables, fp16 [groups, 1, 1, 1, entries, 1]
};

struct WeightOptions {
  WeightFormat format = WeightFormat::kFp16;
  std::span<const uint32_t> head_order = {};  // not empty: row i of every head_order.size() goes to head_order[i]
  float divisor = 1.0f;                       // every weight is divided by it
  size_t palette_rows = kPaletteRows;
  ThreadPool* pool = nullptr;  // nullptr: the caller's thread alone. The result is the same
};

// Stacks `parts` ([out, in] each, any dtype) along the outputs. The tables of a palette hold whole weights, so that the
// scales of its channels need no op; no table serves two parts. Fails (kUnsupported), naming the row, when a weight is
// not a number or does not fit fp16 after the division.
Result<WeightConstant> AddWeight(GraphBuilder& builder, std::span<const TensorView> parts,
                                 const WeightOptions& options);

// The weight as a value of the current function: the constant itself, or the op that decodes it.
ValueId UseWeight(GraphBuilder& builder, const WeightConstant& weight);

// Bytes that AddWeight stores for one part of [out, in] weights, rounded up to whole ones.
size_t WeightBytes(WeightFormat format, size_t out, size_t in);

}  // namespace npumoe
