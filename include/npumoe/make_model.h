// SPDX-License-Identifier: Apache-2.0
// Seeded random checkpoints with true or tiny shapes, for tests, benchmarks and experiments.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

struct MakeModelOptions {
  std::string shape;         // one of MakeModelShapes()
  std::string type = "f32";  // any block type, for matrices whose rows are whole blocks
  uint32_t n_layers = 0;     // 0 = the shape's
  uint32_t vocab_size = 0;   // 0 = the shape's
  uint32_t n_experts = 0, top_k = 0, dim = 0, expert_dim = 0;  // 0 = the shape's
  uint64_t seed = 1;
  std::optional<double> zipf;  // router skew, -100 to 100; 0 = even; empty = 0.35
  bool hugging_face = false;   // write a folder with safetensors instead of GGUF
  bool merged_experts = true;  // GGUF: one tensor for all experts of a projection; a dense shape takes true only
  uint32_t n_splits = 1;
  std::function<bool()> keep_going;  // asked every few megabytes; false ends with kCancelled and leaves nothing
};

std::vector<std::string_view> MakeModelShapes();

// Returns the bytes written. On failure nothing is left at `path`.
Result<uint64_t> MakeModel(const MakeModelOptions& options, const std::string& path);

}  // namespace npumoe
