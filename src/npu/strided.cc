// SPDX-License-Identifier: Apache-2.0
#include "npu/strided.h"

#include <cstring>

#include "base/check.h"

namespace npumoe {

std::vector<size_t> DenseStrides(std::span<const size_t> dims) {
  std::vector<size_t> strides(dims.size(), 1);
  for (size_t i = dims.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * dims[i - 1];
  return strides;
}

bool IsDense(std::span<const size_t> dims, std::span<const ptrdiff_t> strides) {
  NM_CHECK(dims.size() == strides.size());
  ptrdiff_t wanted = 1;
  for (size_t i = dims.size(); i > 0; --i) {
    if (dims[i - 1] != 1 && strides[i - 1] != wanted) return false;
    wanted *= static_cast<ptrdiff_t>(dims[i - 1]);
  }
  return true;
}

std::byte* CopyDense(const std::byte* from, std::span<const size_t> dims, std::span<const ptrdiff_t> strides,
                     size_t elem_bytes, std::byte* to) {
  if (IsDense(dims, strides)) {
    for (const size_t dim : dims) elem_bytes *= dim;
    std::memcpy(to, from, elem_bytes);
    return to + elem_bytes;
  }
  const ptrdiff_t step = strides[0] * static_cast<ptrdiff_t>(elem_bytes);
  for (size_t i = 0; i < dims[0]; ++i) {
    to = CopyDense(from + static_cast<ptrdiff_t>(i) * step, dims.subspan(1), strides.subspan(1), elem_bytes, to);
  }
  return to;
}

}  // namespace npumoe
