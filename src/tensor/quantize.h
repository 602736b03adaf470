// SPDX-License-Identifier: Apache-2.0
// Scalar definition of every block format: block bytes to f32 (exact) and f32 to block bytes (our own rounding).
#pragma once

#include <cstddef>
#include <span>

#include "tensor/dtype.h"

namespace npumoe {

// out[i] = element i of a row; bit for bit llama.cpp's dequantize_row_*. `row` holds RowBytes(dtype, out.size()).
void DequantizeRow(DType dtype, const std::byte* row, std::span<float> out);

// The reverse, with the smallest error a simple search per block finds. in.size() must be whole blocks.
// Non-finite input is the caller's fault; it yields zeros for that block.
void QuantizeRow(DType dtype, std::span<const float> in, std::byte* row);

}  // namespace npumoe
