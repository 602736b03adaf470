// SPDX-License-Identifier: Apache-2.0
// What the block formats of the integer path (integer_strip.h) have in common, and which formats those are.
#pragma once

#include <cstddef>

#include "tensor/blocks.h"
#include "tensor/tensor.h"

namespace npumoe {

// kElems: elements per block. kBits: codes are below 2^kBits. kZero: the code that stands for 0. kGroups: scales per 32
// elements. kOffset: whether there are offsets.
template <typename Block>
struct Format;
template <>
struct Format<BlockQ8_0> {
  static constexpr size_t kElems = 32;
  static constexpr int kBits = 8, kZero = 128, kGroups = 1;
  static constexpr bool kOffset = false;
};
template <>
struct Format<BlockQ4_0> {
  static constexpr size_t kElems = 32;
  static constexpr int kBits = 4, kZero = 8, kGroups = 1;
  static constexpr bool kOffset = false;
};
template <>
struct Format<BlockQ4_1> {
  static constexpr size_t kElems = 32;
  static constexpr int kBits = 4, kZero = 0, kGroups = 1;
  static constexpr bool kOffset = true;
};
template <>
struct Format<BlockQ5_0> {
  static constexpr size_t kElems = 32;
  static constexpr int kBits = 5, kZero = 16, kGroups = 1;
  static constexpr bool kOffset = false;
};
template <>
struct Format<BlockQ5_1> {
  static constexpr size_t kElems = 32;
  static constexpr int kBits = 5, kZero = 0, kGroups = 1;
  static constexpr bool kOffset = true;
};
template <>
struct Format<BlockIQ4NL> : Format<BlockQ8_0> {};
template <>
struct Format<BlockMXFP4> {  // values of kMxfp4Values, -12 to 12
  static constexpr size_t kElems = 32;
  static constexpr int kBits = 5, kZero = 12, kGroups = 1;
  static constexpr bool kOffset = false;
};
template <>
struct Format<BlockQ4K> {
  static constexpr size_t kElems = 256;
  static constexpr int kBits = 4, kZero = 0, kGroups = 1;
  static constexpr bool kOffset = true;
};
template <>
struct Format<BlockQ5K> {
  static constexpr size_t kElems = 256;
  static constexpr int kBits = 5, kZero = 0, kGroups = 1;
  static constexpr bool kOffset = true;
};
template <>
struct Format<BlockQ6K> {
  static constexpr size_t kElems = 256;
  static constexpr int kBits = 6, kZero = 32, kGroups = 2;
  static constexpr bool kOffset = false;
};

// Calls run.template operator()<Block>() with the block of the type and returns true, or false for another type.
template <typename Run>
bool WithIntegerFormat(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::kQ8_0:
      run.template operator()<BlockQ8_0>();
      return true;
    case DType::kQ4_0:
      run.template operator()<BlockQ4_0>();
      return true;
    case DType::kQ4_1:
      run.template operator()<BlockQ4_1>();
      return true;
    case DType::kQ5_0:
      run.template operator()<BlockQ5_0>();
      return true;
    case DType::kQ5_1:
      run.template operator()<BlockQ5_1>();
      return true;
    case DType::kQ4_K:
      run.template operator()<BlockQ4K>();
      return true;
    case DType::kQ5_K:
      run.template operator()<BlockQ5K>();
      return true;
    case DType::kQ6_K:
      run.template operator()<BlockQ6K>();
      return true;
    case DType::kIQ4_NL:
      run.template operator()<BlockIQ4NL>();
      return true;
    case DType::kMXFP4:
      run.template operator()<BlockMXFP4>();
      return true;
    default:
      return false;
  }
}

inline bool HasIntegerFormat(DType dtype) {
  return WithIntegerFormat(dtype, []<typename>() {});
}

}  // namespace npumoe
