// SPDX-License-Identifier: Apache-2.0
// The attention half of a layer: projections, q/k norm, rope, cache, attention, output projection.
#pragma once

#include <cstddef>

#include "engine/buffer.h"
#include "engine/compute.h"
#include "kernels/rope.h"
#include "model/config.h"
#include "model/weights.h"

namespace npumoe {

// out = norm(x) by the model's kind of norm; empty bias = none. out may be x. Rows of [dim].
void NormRow(const ModelConfig& config, std::span<const float> x, const TensorView& weight, const TensorView& bias,
             std::span<float> out);

// x += bias, if there is one.
void AddBias(const TensorView& bias, std::span<float> x);

// Scratch is allocated at construction; Run allocates nothing. One thread at a time.
class AttentionBlock {
 public:
  AttentionBlock(const ModelConfig& config, Compute& compute, size_t max_tokens);

  // Computes cos/sin of this chunk's positions once for all layers.
  void SetPositions(const RopeTable& rope, size_t first_position, size_t n_tokens);

  // Stores the tokens' keys and values, then y += attention(x). The tokens start at row `first_row` of SetPositions.
  void Run(const LayerWeights& weights, const KvView& kv, size_t first_position,
           MatView x,  // [tokens, dim], normalised
           MatView y,  // [tokens, dim]
           size_t first_row = 0);

  std::span<const float> Cos(size_t row) { return cos_.Row(row); }  // [rope_dim / 2]
  std::span<const float> Sin(size_t row) { return sin_.Row(row); }  // [rope_dim / 2]

  // Of the last Run, for an observer: after q/k norm and rope; the output is what was added to y.
  MatView Queries(size_t n_tokens) { return q_.Rows(n_tokens); }   // [tokens, n_heads * head_dim]
  MatView Keys(size_t n_tokens) { return k_.Rows(n_tokens); }      // [tokens, n_kv_heads * head_dim]
  MatView Values(size_t n_tokens) { return v_.Rows(n_tokens); }    // [tokens, n_kv_heads * head_dim]
  MatView Output(size_t n_tokens) { return out_.Rows(n_tokens); }  // [tokens, dim]

  size_t scratch_bytes() const;

 private:
  void PrepareHeads(const LayerWeights& weights, size_t token, size_t first_row);
  void NormHeads(std::span<float> heads, const TensorView& weight) const;

  const ModelConfig& config_;
  Compute& compute_;
  bool rope_interleaved_ = false;
  RowBuffer cos_, sin_;  // [tokens, rope_dim / 2]
  RowBuffer q_, k_, v_;  // [tokens, heads * head_dim]
  RowBuffer heads_out_;  // [tokens, n_heads * head_dim]
  RowBuffer out_;        // [tokens, dim]
};

}  // namespace npumoe
