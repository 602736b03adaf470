// SPDX-License-Identifier: Apache-2.0
// 16 weight rows side by side in memory: where they are, asking for them ahead of time, copying them.
#pragma once

#include <cstddef>
#include <cstring>

namespace npumoe {

inline constexpr size_t kSlabRows = 16;

// 16 rows of one type: row r starts at first + r * stride.
struct SlabRows {
  const std::byte* first;
  size_t stride;
};

// Asks for the rows that are multiplied later, a few lines at every step of what is multiplied now: a read from memory
// takes as long as hundreds of multiplications.
class Ahead {
 public:
  Ahead() = default;
  // `row_bytes` bytes of each of n_rows rows from rows.first on, in n_steps steps.
  Ahead(const SlabRows& rows, size_t n_rows, size_t row_bytes, size_t n_steps)
      : row_(rows.first),
        stride_(rows.stride),
        row_bytes_(row_bytes),
        left_(n_rows * (row_bytes / kLine + 1)),
        per_step_(n_steps == 0 ? 0 : (left_ + n_steps - 1) / n_steps) {}

  [[gnu::always_inline]] inline void Step() {
    for (size_t i = 0; i < per_step_ && left_ != 0; ++i, --left_) {
      __builtin_prefetch(row_ + at_, /*write=*/0, /*locality=*/2);  // to the second-level cache
      at_ += kLine;
      if (at_ > row_bytes_) {
        at_ = 0;
        row_ += stride_;
      }
    }
  }

 private:
  static constexpr size_t kLine = 64;
  const std::byte* row_ = nullptr;
  size_t stride_ = 0, row_bytes_ = 0, left_ = 0, per_step_ = 0;
  size_t at_ = 0;
};

// Copies 16 rows of `bytes` to `to`, the last of n_rows standing in for those beyond: for a slab that hangs over the
// end of the weights.
inline SlabRows CopyRows(const SlabRows& rows, size_t n_rows, size_t bytes, std::byte* to) {
  for (size_t r = 0; r < kSlabRows; ++r) {
    std::memcpy(to + r * bytes, rows.first + (r < n_rows ? r : n_rows - 1) * rows.stride, bytes);
  }
  return {to, bytes};
}

}  // namespace npumoe
