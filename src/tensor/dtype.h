// SPDX-License-Identifier: Apache-2.0
// Element types and the block formats that weights are stored in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "npumoe/result.h"

namespace npumoe {

// The layouts are GGUF's (llama.cpp's `ggml-common.h` names them block_q4_0 and so on).
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
};
inline constexpr size_t kDTypeCount = 16;

struct DTypeInfo {
  std::string_view name;  // "Q4_K", as llama.cpp prints it
  uint32_t gguf_type;     // id in a GGUF tensor record
  uint32_t block_elems;   // elements per block; 1 for plain floats
  uint32_t block_bytes;   // bytes per block
};

const DTypeInfo& Info(DType dtype);
std::optional<DType> DTypeFromGguf(uint32_t gguf_type);
// Case-insensitive; "q4_0", "Q4_K", "f16".
std::optional<DType> DTypeFromName(std::string_view name);

// Bytes of a row of `n_elems`; kCorruptFile when n_elems is not whole blocks or the product overflows.
Result<size_t> RowBytes(DType dtype, size_t n_elems);

}  // namespace npumoe
