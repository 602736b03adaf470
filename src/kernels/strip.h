// SPDX-License-Identifier: Apache-2.0
// The unit of work of MatMul: a few output columns of one product, on the best SIMD target.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/tensor.h"

namespace npumoe {

// Most weight rows of one strip, and most of K that is decoded at a time. 48 * 768 floats are 144 KiB of a second-level
// cache of 1 MiB and more; 8 rows of them, the width of a register tile, are 24 KiB of a first-level cache of 32 KiB.
// Measured against 512 and 1024 on a machine with 48 KiB: 768 is 3 to 9 % faster than 512, 1024 another 2 %.
inline constexpr size_t kStripRows = 48;
inline constexpr size_t kMaxInnerBlock = 768;

inline constexpr size_t CeilDiv(size_t a, size_t b) { return (a + b - 1) / b; }

// f32 values that RunStrip needs as scratch, 64-byte aligned.
inline constexpr size_t kStripScratchFloats = kStripRows * kMaxInnerBlock;

// How K is cut: equal pieces of at most kMaxInnerBlock, rounded up to whole super blocks. Depends on K only, because
// the partial sums of the pieces are added in this order.
size_t InnerBlock(size_t k);

// y[:, first..first+n) = x * W[first..first+n)^T.
struct StripArgs {
  ConstMatView x;        // [M, K]
  const uint32_t* rows;  // [M] which rows of x, or nullptr: 0 to M - 1
  TensorView w;          // [N, K]
  size_t row_bytes = 0;  // of one row of w
  size_t first = 0;      // first weight row
  size_t n_rows = 0;     // 1..kStripRows
  MatView y;             // [M, N]
  float* scratch = nullptr;

  const float* XRow(size_t row) const { return x.Row(rows != nullptr ? rows[row] : row); }
};
void RunStrip(const StripArgs& args);

// out[0..n) = the first n elements of a row, the same values as DequantizeRow (a NaN may differ in its payload).
void DecodeRow(DType dtype, const std::byte* row, size_t n, float* out);

}  // namespace npumoe
