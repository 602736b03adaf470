// SPDX-License-Identifier: Apache-2.0
#include "npu/strided.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace npumoe {
namespace {

using Dims = std::vector<size_t>;
using Strides = std::vector<ptrdiff_t>;

std::vector<int16_t> Dense(const std::vector<int16_t>& from, size_t first, const Dims& dims, const Strides& strides) {
  size_t elems = 1;
  for (const size_t dim : dims) elems *= dim;
  std::vector<int16_t> to(elems);
  const auto* const bytes = reinterpret_cast<const std::byte*>(from.data() + first);
  auto* const out = reinterpret_cast<std::byte*>(to.data());
  EXPECT_EQ(CopyDense(bytes, dims, strides, 2, out), out + 2 * elems);
  return to;
}

TEST(DenseStrides, CountElementsOfInnerAxes) {
  EXPECT_EQ(DenseStrides(Dims{}), Dims{});
  EXPECT_EQ(DenseStrides(Dims{5}), Dims{1});
  EXPECT_EQ(DenseStrides(Dims{2, 3, 4}), (Dims{12, 4, 1}));
}

TEST(IsDense, IgnoresStridesOfSingleElements) {
  EXPECT_TRUE(IsDense(Dims{}, Strides{}));
  EXPECT_TRUE(IsDense(Dims{2, 3}, Strides{3, 1}));
  EXPECT_TRUE(IsDense(Dims{1, 3, 1}, Strides{99, 1, 32}));
  EXPECT_FALSE(IsDense(Dims{2, 3}, Strides{4, 1}));
  EXPECT_FALSE(IsDense(Dims{2, 3}, Strides{1, 2}));
}

TEST(CopyDense, PutsRowsTogether) {
  const std::vector<int16_t> dense{1, 2, 3, 4, 5, 6};
  EXPECT_EQ(Dense(dense, 0, {2, 3}, {3, 1}), dense);
  EXPECT_EQ(Dense({1, 2, 3, -1, 4, 5, 6, -1}, 0, {2, 3}, {4, 1}), dense);                        // padded rows
  EXPECT_EQ(Dense({1, 4, 2, 5, 3, 6}, 0, {2, 3}, {1, 2}), dense);                                // column-major
  EXPECT_EQ(Dense({4, 5, 6, 1, 2, 3}, 3, {2, 3}, {-3, 1}), dense);                               // last row first
  EXPECT_EQ(Dense({1, -1, 2, -1, 3, -1, 4, -1, 5, -1, 6, -1}, 0, {2, 3, 1}, {6, 2, 7}), dense);  // gaps
  EXPECT_EQ(Dense({1, 2, -1, 3, -1, -1, 4, 5, -1, 6}, 0, {2, 2, 1}, {6, 3, 1}), (std::vector<int16_t>{1, 3, 4, 6}));
  EXPECT_EQ(Dense({7}, 0, {}, {}), (std::vector<int16_t>{7}));
}

}  // namespace
}  // namespace npumoe
