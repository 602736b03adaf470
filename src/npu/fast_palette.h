// SPDX-License-Identifier: Apache-2.0
// Decodes weights stored as indices into fp16 palettes, by many threads.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "npu/fast_ops.h"

namespace npumoe {

// What the reference gives for the op, a constexpr_lut_to_dense; nothing when it is not one of constant indices and
// fp16 tables of single values, one or some along the first axis.
std::optional<std::vector<uint16_t>> DecodePalette(const FastOp& op, ThreadPool& pool);

}  // namespace npumoe
