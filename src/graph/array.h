// SPDX-License-Identifier: Apache-2.0
// Index arithmetic over dense row-major shapes, shared by inference and the reference executor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "graph/reference.h"

namespace npumoe {

using Dims = std::vector<size_t>;

inline constexpr size_t kMaxIndexedRank = kMaxGraphRank + 2;  // lookup tables have two axes more than tensors

size_t ProductOf(std::span<const size_t> dims);
Dims StridesOf(std::span<const size_t> dims);  // in elements

// The shape that numpy broadcasting gives; false when the shapes do not fit.
bool BroadcastDims(std::span<const size_t> a, std::span<const size_t> b, Dims& out);

// Strides of an operand of shape `dims` as seen from the broadcast shape `out`: 0 along repeated axes.
Dims BroadcastStrides(std::span<const size_t> dims, std::span<const size_t> out);

// Calls body(flat index, coordinates) for every element of the shape in row-major order. A scalar has one element.
template <typename Body>
void ForEachIndex(std::span<const size_t> dims, const Body& body) {
  const size_t n = ProductOf(dims);
  std::array<size_t, kMaxIndexedRank> at{};
  NM_CHECK(dims.size() <= at.size());
  for (size_t flat = 0; flat < n; ++flat) {
    body(flat, std::span<const size_t>(at.data(), dims.size()));
    for (size_t axis = dims.size(); axis-- > 0;) {
      if (++at[axis] < dims[axis]) break;
      at[axis] = 0;
    }
  }
}

inline size_t OffsetOf(std::span<const size_t> at, std::span<const size_t> strides) {
  size_t offset = 0;
  for (size_t axis = 0; axis < at.size(); ++axis) offset += at[axis] * strides[axis];
  return offset;
}

// A shape seen as [outer, n, inner] around one axis.
struct AxisView {
  size_t outer = 1, n = 1, inner = 1;
  AxisView(std::span<const size_t> dims, size_t axis);
  size_t Offset(size_t o, size_t i) const { return o * n * inner + i; }  // of element 0 of line (o, i); stride inner
};

}  // namespace npumoe
