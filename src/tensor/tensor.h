// SPDX-License-Identifier: Apache-2.0
// Tensor owns bytes, TensorView and the Mat views borrow them. Row-major, outermost dimension first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/check.h"
#include "tensor/dtype.h"

namespace npumoe {

inline constexpr size_t kMaxRank = 4;

// Extents, outermost first: a weight is [out, in], merged experts are [n_experts, out, in].
struct Shape {
  std::array<size_t, kMaxRank> dims{};
  size_t rank = 0;

  static Shape Of(size_t a) { return {{a}, 1}; }
  static Shape Of(size_t a, size_t b) { return {{a, b}, 2}; }
  static Shape Of(size_t a, size_t b, size_t c) { return {{a, b, c}, 3}; }

  size_t operator[](size_t i) const { return dims[i]; }
  size_t inner() const { return rank == 0 ? 1 : dims[rank - 1]; }
  size_t elems() const;  // unchecked: only for shapes that ByteSize accepted
  bool operator==(const Shape& other) const = default;
  std::string ToString() const;  // "[128, 768, 2048]"
};

// Bytes of a tensor, with every product checked; kCorruptFile on overflow or a broken block row.
Result<size_t> ByteSize(DType dtype, const Shape& shape);

// Borrows; the owner (a MappedFile or a Tensor) must outlive it. Valid views have ByteSize bytes at `data`.
struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  const std::byte* data = nullptr;

  bool empty() const { return data == nullptr; }
  // The i-th slice along the outermost dimension: expert i of [n_experts, out, in] is [out, in].
  TensorView Slice(size_t i) const;
  // For kF32 only.
  const float* f32() const {
    NM_DCHECK(dtype == DType::kF32);
    return reinterpret_cast<const float*>(data);
  }
};

// Owns 64-byte-aligned, zeroed bytes.
class Tensor {
 public:
  Tensor() = default;
  static Result<Tensor> Make(DType dtype, const Shape& shape);

  TensorView view() const { return {dtype_, shape_, data_.get()}; }
  std::byte* data() { return data_.get(); }
  float* f32() { return reinterpret_cast<float*>(data_.get()); }
  size_t size_bytes() const { return size_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  DType dtype_ = DType::kF32;
  Shape shape_;
  size_t size_bytes_ = 0;
  std::unique_ptr<std::byte[], Free> data_;
};

// f32 matrices of activations: `rows` rows of `cols` values, `stride` floats apart. Borrowed.
struct MatView {
  float* data = nullptr;  // [rows, cols]
  size_t rows = 0, cols = 0, stride = 0;
  float* Row(size_t row) const { return data + row * stride; }
};
struct ConstMatView {
  const float* data = nullptr;  // [rows, cols]
  size_t rows = 0, cols = 0, stride = 0;
  ConstMatView() = default;
  ConstMatView(const float* d, size_t r, size_t c, size_t s) : data(d), rows(r), cols(c), stride(s) {}
  ConstMatView(MatView m) : data(m.data), rows(m.rows), cols(m.cols), stride(m.stride) {}  // NOLINT: implicit
  const float* Row(size_t row) const { return data + row * stride; }
};

}  // namespace npumoe
