// SPDX-License-Identifier: Apache-2.0
// Random weights of any type for the kernel tests.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace npumoe {

inline constexpr DType kAllDTypes[] = {DType::kF32,  DType::kF16,    DType::kBF16,   DType::kQ8_0,
                                       DType::kQ4_0, DType::kQ4_1,   DType::kQ5_0,   DType::kQ5_1,
                                       DType::kQ2_K, DType::kQ3_K,   DType::kQ4_K,   DType::kQ5_K,
                                       DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4};
static_assert(std::size(kAllDTypes) == kDTypeCount);

inline std::vector<float> RandomFloats(Random& random, size_t n) {
  std::vector<float> out(n);
  for (float& value : out) value = static_cast<float>(random.Gaussian());
  return out;
}

// `n` elements: Gaussian for plain floats, else blocks of random bits whose values are all finite and below 2^40.
inline std::vector<std::byte> RandomRow(Random& random, DType dtype, size_t n) {
  const DTypeInfo& info = Info(dtype);
  std::vector<std::byte> out(n / info.block_elems * info.block_bytes);
  std::vector<float> values(info.block_elems);
  for (size_t at = 0; at < out.size(); at += info.block_bytes) {
    if (info.block_elems == 1) {
      const float value = static_cast<float>(random.Gaussian());
      const uint16_t half = dtype == DType::kF16 ? F32ToF16(value) : F32ToBF16(value);
      std::memcpy(out.data() + at, dtype == DType::kF32 ? static_cast<const void*>(&value) : &half, info.block_bytes);
      continue;
    }
    bool usable = false;
    while (!usable) {
      for (size_t i = 0; i < info.block_bytes; ++i) out[at + i] = static_cast<std::byte>(random.Below(256));
      DequantizeRow(dtype, out.data() + at, values);
      usable = true;
      for (const float value : values) usable = usable && std::abs(value) < 0x1p40f;  // false for NaN
    }
  }
  return out;
}

}  // namespace npumoe
