// SPDX-License-Identifier: Apache-2.0
// The feed-forward half of a layer: dense, or routed experts with an optional shared expert.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/buffer.h"
#include "engine/compute.h"
#include "model/config.h"
#include "model/weights.h"
#include "moe/dispatch.h"
#include "npumoe/result.h"

namespace npumoe {

// Scratch is allocated at construction; Run allocates nothing. One thread at a time.
class Ffn {
 public:
  // `config` and `compute` are borrowed and must outlive this.
  Ffn(const ModelConfig& config, Compute& compute, size_t max_tokens);

  // y += ffn(x). Fails (kUnsupported) when router logits are not finite, naming layer and token.
  Status Run(size_t layer, const LayerWeights& weights,
             MatView x,   // [tokens, dim], normalised
             MatView y);  // [tokens, dim]

  size_t scratch_bytes() const;

 private:
  void RunDense(const TensorView& w_gate, const TensorView& w_up, const TensorView& w_down, MatView x, MatView out);
  void RunShared(const LayerWeights& weights, MatView x, MatView y);
  Status RouteTokens(size_t layer, const LayerWeights& weights, MatView x);
  void RunExperts(const LayerWeights& weights, MatView x);
  void Multiply(const LayerWeights& weights, bool down);

  const ModelConfig& config_;
  Compute& compute_;
  RowBuffer gate_, up_;            // [tokens, ffn_dim] or [slots, expert_dim]
  RowBuffer dense_out_;            // [tokens, dim], dense FFN or shared expert
  RowBuffer router_logits_;        // [tokens, n_experts]
  RowBuffer route_scratch_;        // [tokens, n_experts]
  RowBuffer packed_, packed_out_;  // [slots, dim]
  std::vector<uint32_t> experts_;  // [tokens, top_k]
  std::vector<float> weights_;     // [tokens, top_k]
  Dispatch dispatch_;
  std::vector<MatMulJob> jobs_;
};

}  // namespace npumoe
