// SPDX-License-Identifier: Apache-2.0
// The unit of work of HalfProduct: a strip of one left matrix times some columns of its right one.
#pragma once

#include <cstddef>

#include "kernels/half_product.h"

namespace npumoe {

// 12 rows of a and a panel of b meet in a first-level cache of 48 KiB (9 + 24 KiB); all of a thread's scratch (288 KiB)
// lies in a second-level cache.
inline constexpr size_t kLeftRows = 96;      // of a
inline constexpr size_t kInnerPiece = 192;   // of k
inline constexpr size_t kPanelColumns = 32;  // columns of b; as many fp16 are a cache line
inline constexpr size_t kTaskColumns = 512;  // of b

// Of one thread; values widened to f32.
struct HalfScratch {
  float a[kLeftRows * kInnerPiece];
  float b[kInnerPiece * kPanelColumns];
  float y[kTaskColumns * kLeftRows];  // [panels, kLeftRows, kPanelColumns]
};

struct HalfTask {
  const HalfProductJob& job;
  size_t row, rows;        // <= kLeftRows
  size_t column, columns;  // <= kTaskColumns
};

}  // namespace npumoe
