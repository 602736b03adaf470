// SPDX-License-Identifier: Apache-2.0
#include "graph/array.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "graph/op_reader.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

template <typename T>
T ReadAt(const std::vector<std::byte>& data, size_t index) {
  T value;
  std::memcpy(&value, data.data() + index * sizeof(T), sizeof(T));
  return value;
}

// Element `index` of a stream of `bits`-wide fields, least significant bit first.
uint32_t BitsAt(const std::vector<std::byte>& data, size_t index, size_t bits) {
  uint32_t value = 0;
  for (size_t bit = 0; bit < bits; ++bit) {
    const size_t at = index * bits + bit;
    value |= (std::to_integer<uint32_t>(data[at / 8]) >> (at % 8) & 1u) << bit;
  }
  return value;
}

int64_t IntAt(const Constant& constant, size_t index) {
  switch (constant.type.elem) {
    case ElemType::kI8:
      return ReadAt<int8_t>(constant.data, index);
    case ElemType::kU8:
      return ReadAt<uint8_t>(constant.data, index);
    case ElemType::kI16:
      return ReadAt<int16_t>(constant.data, index);
    case ElemType::kU16:
      return ReadAt<uint16_t>(constant.data, index);
    case ElemType::kI32:
      return ReadAt<int32_t>(constant.data, index);
    case ElemType::kU32:
      return ReadAt<uint32_t>(constant.data, index);
    case ElemType::kBool:
      return ReadAt<uint8_t>(constant.data, index) != 0 ? 1 : 0;
    case ElemType::kI4: {
      const auto field = static_cast<int64_t>(BitsAt(constant.data, index, 4));
      return field < 8 ? field : field - 16;
    }
    default:
      return BitsAt(constant.data, index, BitsOf(constant.type.elem));
  }
}

}  // namespace

Array ArrayOf(const Constant& constant) {
  Array array{constant.type, {}, {}};
  if (constant.type.elem == ElemType::kString) return array;
  NM_CHECK(constant.data.size() == constant.type.bytes());
  const size_t n = constant.type.elems();
  if (!IsFloat(constant.type.elem)) {
    array.ints.resize(n);
    for (size_t i = 0; i < n; ++i) array.ints[i] = IntAt(constant, i);
    return array;
  }
  array.floats.resize(n);
  for (size_t i = 0; i < n; ++i) {
    array.floats[i] = constant.type.elem == ElemType::kF16 ? F16ToF32(ReadAt<uint16_t>(constant.data, i))
                                                           : ReadAt<float>(constant.data, i);
  }
  return array;
}

size_t ProductOf(std::span<const size_t> dims) {
  size_t n = 1;
  for (const size_t dim : dims) n *= dim;
  return n;
}

Dims StridesOf(std::span<const size_t> dims) {
  Dims strides(dims.size());
  size_t stride = 1;
  for (size_t axis = dims.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= dims[axis];
  }
  return strides;
}

bool BroadcastDims(std::span<const size_t> a, std::span<const size_t> b, Dims& out) {
  out.assign(std::max(a.size(), b.size()), 1);
  for (size_t back = 0; back < out.size(); ++back) {
    const size_t da = back < a.size() ? a[a.size() - 1 - back] : 1;
    const size_t db = back < b.size() ? b[b.size() - 1 - back] : 1;
    if (da != db && da != 1 && db != 1) return false;
    out[out.size() - 1 - back] = da == 1 ? db : da;
  }
  return true;
}

Dims BroadcastStrides(std::span<const size_t> dims, std::span<const size_t> out) {
  const Dims own = StridesOf(dims);
  Dims strides(out.size(), 0);
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    if (dims[axis] != 1) strides[out.size() - dims.size() + axis] = own[axis];
  }
  return strides;
}

AxisView::AxisView(std::span<const size_t> dims, size_t axis)
    : outer(ProductOf(dims.first(axis))), n(dims[axis]), inner(ProductOf(dims.subspan(axis + 1))) {}

}  // namespace npumoe
