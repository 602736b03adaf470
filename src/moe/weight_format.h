// SPDX-License-Identifier: Apache-2.0
// Weights as a static graph holds them: fp16 today's arithmetic, int8 or palettes as storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/builder.h"
#include "moe/plan.h"
#include "tensor/tensor.h"

namespace npumoe {

// The constants behind one 1x1 convolution weight [out, in, 1, 1], to be used by any function of the graph.
struct WeightConstant {
  WeightFormat format = WeightFormat::kFp16;
  uint32_t data = kNoConstant;   // fp16 weights, or int8 / palette indices
  uint32_t scale = kNoConstant;  // int8: fp16 [out]; palettes: the table
  size_t out = 0, in = 0;
};

// Stacks `parts` ([out_i, in] each, any dtype) along the outputs. `head_order`, when not empty, moves row i of every
// head_order.size() rows to row head_order[i]. Every weight is divided by `divisor`.
WeightConstant AddWeight(GraphBuilder& builder, std::span<const TensorView> parts, WeightFormat format,
                         std::span<const uint32_t> head_order, float divisor = 1.0f);

// The weight as a value of the current function: the constant itself, or the op that decodes it.
ValueId UseWeight(GraphBuilder& builder, const WeightConstant& weight);

// Bytes that AddWeight stores for out * in weights.
size_t WeightBytes(WeightFormat format, size_t out, size_t in);

}  // namespace npumoe
