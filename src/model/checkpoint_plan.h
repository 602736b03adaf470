// SPDX-License-Identifier: Apache-2.0
// What a random checkpoint consists of: every tensor with its file's name, dtype, shape and value rule.
#pragma once

#include <string>
#include <vector>

#include "model/random_model.h"
#include "model/random_values.h"
#include "model/tensor_names.h"
#include "tensor/tensor.h"

namespace npumoe {

enum class FillKind : uint8_t {
  kRandom,     // rows by RowMaker
  kAroundOne,  // 1 + random: norm weights
  kRouter,     // random without a share of CommonDirection(), plus `skew[row]` of it
  kFixed,      // `fixed` itself
};

struct PlannedTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;  // outermost first
  FillKind fill = FillKind::kRandom;
  ValueRule rule;
  std::vector<uint64_t> seeds;        // one per matrix: several for merged experts
  uint32_t interleaved_head_dim = 0;  // > 0: rows of each head are stored in GGUF llama order (pairs beside each other)
  std::vector<float> skew;            // kRouter: [n_experts]
  std::vector<float> fixed;           // kFixed
};

// The same seed gives the same model in every format, layout and dtype. `spec` was validated.
std::vector<PlannedTensor> PlanCheckpoint(const RandomModelSpec& spec, const Family& family);

}  // namespace npumoe
