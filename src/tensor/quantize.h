// SPDX-License-Identifier: Apache-2.0
// Scalar definition of every block format: block bytes to f32 (exact) and f32 to block bytes (our own rounding).
#pragma once

#include <cstddef>
#include <span>

#include "tensor/dtype.h"

namespace npumoe {

// out[i] = element i of a row; bit for bit llama.cpp's dequantize_row_*. `row` holds RowBytes(dtype, out.size()).
void DequantizeRow(DType dtype, const std::byte* row, std::span<float> out);

// The reverse, with the smallest squared error that a short search per block finds; the bytes are the same on every
// machine. in.size() must be whole blocks. A block with a non-finite value becomes zeros, scales beyond f16 saturate;
// plain floats (F32, F16, BF16) are rounded one by one, infinities and NaN included.
void QuantizeRow(DType dtype, std::span<const float> in, std::byte* row);

}  // namespace npumoe
