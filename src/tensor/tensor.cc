// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor.h"

#include <cstdlib>
#include <cstring>

#include "base/checked_math.h"

namespace npumoe {
namespace {
constexpr size_t kAlignment = 64;  // one cache line, one AVX-512 vector
}

size_t Shape::elems() const {
  size_t n = 1;
  for (size_t i = 0; i < rank; ++i) n *= dims[i];
  return n;
}

std::string Shape::ToString() const {
  std::string out = "[";
  for (size_t i = 0; i < rank; ++i) out += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
  return out + "]";
}

Result<size_t> ByteSize(DType dtype, const Shape& shape) {
  NM_TRY_VAR(size_t bytes, RowBytes(dtype, shape.inner()));
  for (size_t i = 0; i + 1 < shape.rank; ++i) {
    NM_TRY_VAR(bytes, CheckedMul(bytes, shape.dims[i]));
  }
  return bytes;
}

TensorView TensorView::Slice(size_t i) const {
  NM_DCHECK(shape.rank >= 2 && i < shape.dims[0]);
  TensorView slice{dtype, {}, nullptr};
  slice.shape.rank = shape.rank - 1;
  for (size_t d = 1; d < shape.rank; ++d) slice.shape.dims[d - 1] = shape.dims[d];
  slice.data = data + i * ByteSize(dtype, slice.shape).value();
  return slice;
}

void Tensor::Free::operator()(std::byte* p) const { std::free(p); }

Result<Tensor> Tensor::Make(DType dtype, const Shape& shape) {
  NM_TRY_VAR(const size_t bytes, ByteSize(dtype, shape));
  NM_TRY_VAR(const size_t padded, CheckedAdd(bytes, kAlignment));
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = shape;
  tensor.size_bytes_ = bytes;
  void* p = std::aligned_alloc(kAlignment, padded / kAlignment * kAlignment);
  if (p == nullptr)
    return MakeError(Code::kOutOfMemory, "tensor {}: cannot allocate {} bytes", shape.ToString(), bytes);
  std::memset(p, 0, padded / kAlignment * kAlignment);
  tensor.data_.reset(static_cast<std::byte*>(p));
  return tensor;
}

}  // namespace npumoe
