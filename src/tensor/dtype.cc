// SPDX-License-Identifier: Apache-2.0
#include "tensor/dtype.h"

#include <array>

#include "base/checked_math.h"

namespace npumoe {
namespace {

// Ids and sizes: the GGUF specification's ggml_type table.
constexpr std::array<DTypeInfo, kDTypeCount> kInfo{{
    {"F32", 0, 1, 4},
    {"F16", 1, 1, 2},
    {"BF16", 30, 1, 2},
    {"Q8_0", 8, 32, 34},
    {"Q4_0", 2, 32, 18},
    {"Q4_1", 3, 32, 20},
    {"Q5_0", 6, 32, 22},
    {"Q5_1", 7, 32, 24},
    {"Q2_K", 10, 256, 84},
    {"Q3_K", 11, 256, 110},
    {"Q4_K", 12, 256, 144},
    {"Q5_K", 13, 256, 176},
    {"Q6_K", 14, 256, 210},
    {"IQ4_NL", 20, 32, 18},
    {"IQ4_XS", 23, 256, 136},
    {"MXFP4", 39, 32, 17},
}};

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool SameName(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (Lower(a[i]) != Lower(b[i])) return false;
  }
  return true;
}

}  // namespace

const DTypeInfo& Info(DType dtype) { return kInfo[static_cast<size_t>(dtype)]; }

std::optional<DType> DTypeFromGguf(uint32_t gguf_type) {
  for (size_t i = 0; i < kDTypeCount; ++i) {
    if (kInfo[i].gguf_type == gguf_type) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (size_t i = 0; i < kDTypeCount; ++i) {
    if (SameName(kInfo[i].name, name)) return static_cast<DType>(i);
  }
  return std::nullopt;
}

Result<size_t> RowBytes(DType dtype, size_t n_elems) {
  const DTypeInfo& info = Info(dtype);
  if (n_elems % info.block_elems != 0) {
    return MakeError(Code::kCorruptFile, "row of {} elements is not whole {} blocks of {}", n_elems, info.name,
                     info.block_elems);
  }
  return CheckedMul(n_elems / info.block_elems, info.block_bytes);
}

}  // namespace npumoe
