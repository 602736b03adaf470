// SPDX-License-Identifier: Apache-2.0
// Tensors whose rows lie apart, or in another order than row-major. Strides count elements.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace npumoe {

// Of a row-major tensor without gaps.
std::vector<size_t> DenseStrides(std::span<const size_t> dims);

// Whether it is one. The stride of an axis of length 1 means nothing.
bool IsDense(std::span<const size_t> dims, std::span<const ptrdiff_t> strides);

// Copies a tensor to dense memory, which it must not overlap; returns the end of what was written.
std::byte* CopyDense(const std::byte* from, std::span<const size_t> dims, std::span<const ptrdiff_t> strides,
                     size_t elem_bytes, std::byte* to);

}  // namespace npumoe
