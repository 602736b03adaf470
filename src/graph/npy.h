// SPDX-License-Identifier: Apache-2.0
// Arrays in NumPy's .npy files.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "graph/reference.h"

namespace npumoe {

// Format versions 1 to 3, little endian, C or Fortran order, numbers and bools; float64 becomes fp32, int64 and uint64
// become int32 where they fit. kCorruptFile or kUnsupported, the message begins with `subject`.
Result<Array> ParseNpy(std::span<const std::byte> bytes, std::string_view subject);
Result<Array> ReadNpy(const std::string& path);

// The array as `wanted`: the same shape, floats rounded to its float type, whole numbers that fit its whole-number
// type. kInvalidArgument otherwise.
Result<Array> FitArray(Array array, const ValueType& wanted, std::string_view subject);

// Version 1, C order; fp16 as '<f2'. Atomic.
Status WriteNpy(const std::string& path, const Array& array);

}  // namespace npumoe
