// SPDX-License-Identifier: Apache-2.0
// Row operations on f32 vectors: norms, activation, softmax, sums. Each is one row on one thread.
#pragma once

#include <cstddef>
#include <span>

namespace npumoe {

// out = x / sqrt(mean(x^2) + eps) * weight (+ bias if not empty). out may alias x. All spans [dim].
void RmsNorm(std::span<const float> x, std::span<const float> weight, std::span<const float> bias, float eps,
             std::span<float> out);

// out = (x - mean) / sqrt(var + eps) * weight (+ bias if not empty), var with 1/n. out may alias x.
void LayerNorm(std::span<const float> x, std::span<const float> weight, std::span<const float> bias, float eps,
               std::span<float> out);

// gate[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + exp(-x)); silu(-inf) is 0.
void SiluMul(std::span<float> gate, std::span<const float> up);

// y += scale * x.
void AddScaled(std::span<const float> x, float scale, std::span<float> y);

// x = exp(x - max) / sum, in place. Empty is allowed. -inf gives 0, even when all are; NaN or +inf gives NaN.
void Softmax(std::span<float> x);

}  // namespace npumoe
