// SPDX-License-Identifier: Apache-2.0
// Layout of constexpr_lut_to_dense and constexpr_lut_to_sparse. The former has two forms: CoreML6 (packed bytes, one
// table) and CoreML8 (tables per block).
#pragma once

#include "graph/array.h"
#include "graph/op_reader.h"

namespace npumoe {

struct Palette {
  Dims indices;         // shape of the indices
  Dims groups;          // tables along each axis; divides `indices`
  size_t bits = 0;      // per index; a table has 2^bits entries
  size_t width = 1;     // values per entry
  size_t axis = 0;      // along which the values of one entry are laid, when width > 1
  bool packed = false;  // indices are bytes that hold `bits`-wide fields
  ElemType elem = ElemType::kF16;

  Dims dims() const;  // of the decoded tensor
};
Result<Palette> ReadPalette(OpReader& in);
// Of constexpr_lut_to_sparse, which stores only the indices whose mask is 1; `indices` is the shape of the mask.
Result<Palette> ReadSparsePalette(OpReader& in);

}  // namespace npumoe
