// SPDX-License-Identifier: Apache-2.0
// Seeded random checkpoints of any family and shape, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "tensor/dtype.h"

namespace npumoe {

enum class CheckpointFormat { kGguf, kHuggingFace };

struct RandomModelSpec {
  ModelConfig config;                // family, shape; Validate must accept it
  DType matrix_dtype = DType::kF32;  // every matrix whose rows are whole blocks
  // Rows that are not whole blocks of matrix_dtype take Q8_0 if they can, else F16 (as llama-quantize falls back).
  uint64_t seed = 1;
  double zipf = 0.35;  // router skew: bias of expert of rank r falls as -zipf * ln(r)... 0 = even
  CheckpointFormat format = CheckpointFormat::kGguf;
  bool merged_experts = true;        // GGUF: ffn_gate_exps; false: one tensor per expert
  std::function<bool()> keep_going;  // empty = never asked; false stops with kCancelled
  uint32_t n_splits = 1;             // GGUF split files / safetensors shards
};

// Names for RandomModelSpec: "qwen3-30b-a3b", "phi-3.5-moe", "phi-tiny-moe", and "tiny-<family>" per family.
std::vector<std::string_view> ShapeNames();
// The true shape of a published model (source beside each number), or a tiny one of a family.
Result<ModelConfig> ShapeByName(std::string_view name);

// Streams tensor by tensor: memory stays at one tensor. The vocabulary is synthetic, byte-complete BPE of exactly
// config.vocab_size tokens (at least 300), so that any text can be encoded. Returns the bytes written.
Result<uint64_t> WriteRandomModel(const RandomModelSpec& spec, const std::string& path);

}  // namespace npumoe
