// SPDX-License-Identifier: Apache-2.0
#include "engine/attention_block.h"

#include <cmath>

#include "kernels/vector_ops.h"

namespace npumoe {
namespace {

std::span<const float> F32Span(const TensorView& view) {
  return view.empty() ? std::span<const float>() : std::span(view.f32(), view.shape.elems());
}

}  // namespace

void NormRow(const ModelConfig& config, std::span<const float> x, const TensorView& weight, const TensorView& bias,
             std::span<float> out) {
  switch (config.norm) {
    case NormKind::kRms:
      RmsNorm(x, F32Span(weight), F32Span(bias), config.norm_eps, out);
      return;
    case NormKind::kLayerNorm:
      LayerNorm(x, F32Span(weight), F32Span(bias), config.norm_eps, out);
      return;
  }
}

void AddBias(const TensorView& bias, std::span<float> x) {
  if (!bias.empty()) AddScaled({bias.f32(), x.size()}, 1.0f, x);
}

AttentionBlock::AttentionBlock(const ModelConfig& config, Compute& compute, size_t max_tokens)
    : config_(config), compute_(compute) {
  const size_t q_dim = size_t{config.n_heads} * config.head_dim;
  const size_t kv_dim = size_t{config.n_kv_heads} * config.head_dim;
  cos_.Allocate(max_tokens, config.rope_dim / 2);
  sin_.Allocate(max_tokens, config.rope_dim / 2);
  q_.Allocate(max_tokens, q_dim);
  k_.Allocate(max_tokens, kv_dim);
  v_.Allocate(max_tokens, kv_dim);
  heads_out_.Allocate(max_tokens, q_dim);
  out_.Allocate(max_tokens, config.dim);
}

size_t AttentionBlock::scratch_bytes() const {
  return cos_.bytes() + sin_.bytes() + q_.bytes() + k_.bytes() + v_.bytes() + heads_out_.bytes() + out_.bytes();
}

void AttentionBlock::SetPositions(const RopeTable& rope, size_t first_position, size_t n_tokens) {
  rope_interleaved_ = rope.interleaved;
  compute_.ForRows(n_tokens,
                   [&](size_t token) { RopeCosSin(rope, first_position + token, cos_.Row(token), sin_.Row(token)); });
}

void AttentionBlock::NormHeads(std::span<float> heads, const TensorView& weight) const {
  // q/k norm is an RMS norm in every family that has one, without bias.
  if (config_.qk_norm == QkNorm::kFullWidth) {
    RmsNorm(heads, F32Span(weight), {}, config_.norm_eps, heads);
    return;
  }
  for (size_t begin = 0; begin < heads.size(); begin += config_.head_dim) {
    const auto head = heads.subspan(begin, config_.head_dim);
    RmsNorm(head, F32Span(weight), {}, config_.norm_eps, head);
  }
}

void AttentionBlock::PrepareHeads(const LayerWeights& weights, size_t token, size_t first_row) {
  const auto q = q_.Row(token), k = k_.Row(token);
  AddBias(weights.bq, q);
  AddBias(weights.bk, k);
  AddBias(weights.bv, v_.Row(token));
  if (config_.qk_norm != QkNorm::kNone) {
    NormHeads(q, weights.q_norm);
    NormHeads(k, weights.k_norm);
  }
  for (const auto heads : {q, k}) {
    for (size_t begin = 0; begin < heads.size(); begin += config_.head_dim) {
      ApplyRope(heads.subspan(begin, config_.head_dim), cos_.Row(first_row + token), sin_.Row(first_row + token),
                rope_interleaved_);
    }
  }
}

void AttentionBlock::Run(const LayerWeights& weights, const KvView& kv, size_t first_position, MatView x, MatView y,
                         size_t first_row) {
  const size_t n_tokens = x.rows;
  // Keys and values of a few heads are one task, and a long one: it comes first, so that short ones fill up the end.
  const MatMulJob projections[] = {
      {x, weights.wk, k_.Rows(n_tokens)}, {x, weights.wv, v_.Rows(n_tokens)}, {x, weights.wq, q_.Rows(n_tokens)}};
  compute_.matmul.Run(projections);
  compute_.ForRows(n_tokens, [&](size_t token) {
    PrepareHeads(weights, token, first_row);
    kv.Store(first_position + token, k_.Row(token).data(), v_.Row(token).data());
  });
  const AttentionParams params{config_.n_heads, 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                               config_.sliding_window};
  compute_.attention.Run(params, q_.Rows(n_tokens), kv, first_position, heads_out_.Rows(n_tokens));
  const MatMulJob output[] = {{heads_out_.Rows(n_tokens), weights.wo, out_.Rows(n_tokens)}};
  compute_.matmul.Run(output);
  compute_.ForRows(n_tokens, [&](size_t token) {
    AddBias(weights.bo, out_.Row(token));
    AddScaled(out_.Row(token), 1.0f, {y.Row(token), y.cols});
  });
}

}  // namespace npumoe
