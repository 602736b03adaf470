// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace npumoe {

// Inverse frequencies of one rotary setting. Immutable after construction.
struct RopeTable {
  std::vector<float> inv_freq;  // [rope_dim / 2], already divided by the long/short factors
  float scale = 1.0f;           // multiplies cos and sin (LongRoPE's mscale)
  bool interleaved = false;     // pairs (2i, 2i+1) (GGUF llama) instead of (i, i + rope_dim/2) (NeoX)

  // inv_freq[i] = theta^(-2i/rope_dim) / factors[i]; empty `factors` means 1. Computed in double.
  static RopeTable Make(size_t rope_dim, double theta, std::span<const float> factors, float scale, bool interleaved);
};

// cos/sin of `position`, each [rope_dim / 2], times table.scale. Angle in double: right at 1M positions.
void RopeCosSin(const RopeTable& table, size_t position, std::span<float> cos, std::span<float> sin);

// Rotates the first 2 * cos.size() values of `head` ([head_dim]); the rest stays.
void ApplyRope(std::span<float> head, std::span<const float> cos, std::span<const float> sin, bool interleaved);

}  // namespace npumoe
