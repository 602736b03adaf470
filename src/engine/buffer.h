// SPDX-License-Identifier: Apache-2.0
// A growable-at-open array of f32 rows for activations.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/huge_pages.h"
#include "tensor/tensor.h"

namespace npumoe {

// `capacity_rows` rows of `cols` values, allocated once; views of the first rows are handed out.
class RowBuffer {
 public:
  void Allocate(size_t capacity_rows, size_t cols) {
    cols_ = cols;
    data_.reserve(capacity_rows * cols);
    PreferHugePages(data_.data(), data_.capacity() * sizeof(float));  // before anything is written
    data_.resize(capacity_rows * cols);
  }
  MatView Rows(size_t n_rows) {
    NM_DCHECK(n_rows * cols_ <= data_.size());
    return {data_.data(), n_rows, cols_, cols_};
  }
  MatView Rows(size_t begin, size_t n_rows) {
    NM_DCHECK((begin + n_rows) * cols_ <= data_.size());
    return {data_.data() + begin * cols_, n_rows, cols_, cols_};
  }
  std::span<float> Row(size_t row) { return {data_.data() + row * cols_, cols_}; }
  std::span<float> Flat(size_t n_rows) { return {data_.data(), n_rows * cols_}; }
  size_t cols() const { return cols_; }
  size_t bytes() const { return data_.size() * sizeof(float); }

 private:
  std::vector<float> data_;
  size_t cols_ = 0;
};

}  // namespace npumoe
