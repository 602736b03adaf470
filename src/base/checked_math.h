// SPDX-License-Identifier: Apache-2.0
// Products and sums of numbers read from files: an overflow is an error, never a wrap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace npumoe {

inline Result<size_t> CheckedMul(size_t a, size_t b) {
  size_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) return MakeError(Code::kCorruptFile, "size {} * {} overflows", a, b);
  return out;
}

inline Result<size_t> CheckedAdd(size_t a, size_t b) {
  size_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) return MakeError(Code::kCorruptFile, "size {} + {} overflows", a, b);
  return out;
}

}  // namespace npumoe
