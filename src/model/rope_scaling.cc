// SPDX-License-Identifier: Apache-2.0
#include "model/rope_scaling.h"

#include <algorithm>
#include <cmath>

namespace npumoe {
namespace {

constexpr double kTwoPi = 6.283185307179586;

double InverseFrequency(uint32_t pair, uint32_t rope_dim, double theta) {
  return std::pow(theta, -2.0 * pair / rope_dim);
}

}  // namespace

std::vector<float> Llama3Factors(uint32_t rope_dim, double theta, const Llama3Scaling& scaling) {
  std::vector<float> factors(rope_dim / 2);
  for (uint32_t pair = 0; pair < rope_dim / 2; ++pair) {
    const double frequency = InverseFrequency(pair, rope_dim, theta);
    const double turns = scaling.original_context * frequency / kTwoPi;  // over the original context
    // 0 where the whole stretch applies, 1 where none does.
    const double keep =
        std::clamp((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0, 1.0);
    factors[pair] = static_cast<float>(1.0 / (keep + (1.0 - keep) / scaling.factor));
  }
  return factors;
}

std::vector<float> YarnFactors(uint32_t rope_dim, double theta, const YarnScaling& scaling) {
  // The (fractional) pair that makes `turns` turns over the original context.
  const auto pair_of = [&](double turns) {
    return rope_dim * std::log(scaling.original_context / (turns * kTwoPi)) / (2.0 * std::log(theta));
  };
  double low = pair_of(scaling.beta_fast);
  double high = pair_of(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rope_dim - 1.0);
  const double width = std::max(high - low, 0.001);  // 0.001: the reference's guard against an empty ramp
  std::vector<float> factors(rope_dim / 2);
  for (uint32_t pair = 0; pair < rope_dim / 2; ++pair) {
    const double stretched = std::clamp((pair - low) / width, 0.0, 1.0);
    factors[pair] = static_cast<float>(1.0 / (stretched / scaling.factor + (1.0 - stretched)));
  }
  return factors;
}

float YarnAttentionFactor(double factor) {
  return factor <= 1.0 ? 1.0f : static_cast<float>(1.0 + 0.1 * std::log(factor));
}

float LongRopeAttentionFactor(uint32_t context, uint32_t original_context) {
  if (context <= original_context || original_context < 2) return 1.0f;
  const double scale = static_cast<double>(context) / original_context;
  return static_cast<float>(std::sqrt(1.0 + std::log(scale) / std::log(original_context)));
}

void ApplyLinearScaling(ModelConfig& config, double factor) {
  for (std::vector<float>* factors : {&config.rope_short_factors, &config.rope_long_factors}) {
    if (factors->empty()) factors->assign(config.rope_dim / 2, 1.0f);
    for (float& value : *factors) value = static_cast<float>(value * factor);
  }
}

void SetRopeFactors(ModelConfig& config, std::vector<float> factors, float scale) {
  config.rope_short_factors = factors;
  config.rope_long_factors = std::move(factors);
  config.rope_short_scale = config.rope_long_scale = scale;
}

}  // namespace npumoe
