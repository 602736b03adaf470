// SPDX-License-Identifier: Apache-2.0
// Rope scaling rules as per-dimension divisors of the inverse frequencies, which is all that ModelConfig stores.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace npumoe {

// Llama 3.1's rule: long wavelengths are stretched by `factor`, short ones kept, the band between blended.
struct Llama3Scaling {
  double factor = 0, low_freq_factor = 0, high_freq_factor = 0;
  uint32_t original_context = 0;
};
std::vector<float> Llama3Factors(uint32_t rope_dim, double theta, const Llama3Scaling& scaling);  // [rope_dim / 2]

// YaRN (Peng et al. 2023): dimensions that turn more than beta_fast times over the original context are kept, those
// below beta_slow turns are stretched by `factor`, with a linear ramp between.
struct YarnScaling {
  double factor = 0, beta_fast = 32, beta_slow = 1;  // the paper's values for Llama
  uint32_t original_context = 0;
  bool truncate = true;  // round the ends of the ramp outwards to whole dimensions
};
std::vector<float> YarnFactors(uint32_t rope_dim, double theta, const YarnScaling& scaling);  // [rope_dim / 2]
// What YaRN multiplies cos and sin by: 1 + 0.1 ln(factor), 1 for factors up to 1.
float YarnAttentionFactor(double factor);

// LongRoPE's scale when the file names none: sqrt(1 + ln(context / original) / ln(original)).
float LongRopeAttentionFactor(uint32_t context, uint32_t original_context);

// Multiplies the factors of both lengths by `factor` (linear scaling).
void ApplyLinearScaling(ModelConfig& config, double factor);
// The same factors and scale at every length.
void SetRopeFactors(ModelConfig& config, std::vector<float> factors, float scale);

}  // namespace npumoe
