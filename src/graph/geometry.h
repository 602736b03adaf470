// SPDX-License-Identifier: Apache-2.0
// Windows and ranges read from an op's constant parameters: the same numbers for inference and execution.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "graph/array.h"
#include "graph/op_reader.h"

namespace npumoe {

struct ConvAxis {
  size_t in = 1, kernel = 1, stride = 1, dilation = 1, pad_begin = 0, out = 1;
};
struct ConvShape {
  size_t batch = 1, in_channels = 1, out_channels = 1, groups = 1;
  std::vector<ConvAxis> axes;  // 1 to 3 spatial axes
};
// Of `conv`: checks x, weight, strides, pad_type, pad, dilations and groups against each other.
Result<ConvShape> ReadConv(OpReader& in);

// One axis of a slice: elements start, start + step, ... (count of them).
struct SliceAxis {
  int64_t start = 0, step = 1;
  size_t count = 0;
  bool squeeze = false;
};
struct SliceMasks {
  std::vector<int64_t> stride;            // [rank]
  std::vector<bool> begin, end, squeeze;  // [rank]
};
// Stride and masks of slice_by_index and slice_update; absent ones are 1 and false.
Result<SliceMasks> ReadSliceMasks(OpReader& in, size_t rank);
// Python's rules for negative and too large ends; an empty range or an element out of range is an error.
Result<std::vector<SliceAxis>> ResolveSlice(OpReader& in, std::span<const size_t> dims, std::span<const int64_t> begin,
                                            std::span<const int64_t> end, const SliceMasks& masks);
// Shape of the slice, squeezed axes dropped.
Dims SliceDims(std::span<const SliceAxis> axes);

// `pad`: elements before and after every axis of x.
struct PadAxis {
  size_t before = 0, after = 0;
};
Result<std::vector<PadAxis>> ReadPad(OpReader& in, std::span<const size_t> dims);

// `einsum`: labels of both operands and the result, one character per axis.
struct EinsumLabels {
  std::string x, y, out;
};
Result<EinsumLabels> ReadEinsum(OpReader& in);

// Lengths of the parts of `split`, from num_splits or split_sizes.
Result<std::vector<size_t>> ReadSplit(OpReader& in, size_t axis_length);

}  // namespace npumoe
