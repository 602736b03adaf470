// SPDX-License-Identifier: Apache-2.0
#include "engine/forward.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "engine/routing_observer.h"
#include "tensor/quantize.h"

namespace npumoe {
namespace {

// The longest row any matrix multiplication reads.
size_t MaxInner(const ModelConfig& config) {
  return std::max({size_t{config.dim}, size_t{config.n_heads} * config.head_dim, size_t{config.ffn_dim},
                   size_t{config.expert_dim}, size_t{config.shared_expert_dim}});
}

}  // namespace

Forward::Forward(const Model& model, size_t n_threads, size_t max_chunk_tokens, Activations activations)
    : config_(model.config()),
      weights_(model.weights()),
      max_chunk_tokens_(max_chunk_tokens),
      compute_(n_threads, MaxInner(config_), config_.head_dim, activations),
      attention_(config_, compute_, max_chunk_tokens),
      ffn_(config_, compute_, max_chunk_tokens),
      short_rope_(RopeTable::Make(config_.rope_dim, config_.rope_theta, config_.rope_short_factors,
                                  config_.rope_short_scale, config_.rope_interleaved)),
      long_rope_(RopeTable::Make(config_.rope_dim, config_.rope_theta, config_.rope_long_factors,
                                 config_.rope_long_scale, config_.rope_interleaved)) {
  x_.Allocate(max_chunk_tokens, config_.dim);
  normed_.Allocate(max_chunk_tokens, config_.dim);
}

size_t Forward::scratch_bytes() const {
  return x_.bytes() + normed_.bytes() + attention_.scratch_bytes() + ffn_.scratch_bytes() +
         compute_.matmul.scratch_bytes() + compute_.attention.scratch_bytes();
}

void Forward::Observe(RoutingObserver* observer) {
  observer_ = observer;
  ffn_.Observe(observer);
}

void Forward::SeeAttention(MatView x) {
  observer_->See(&ActivationRange::attention_in, normed_.Rows(x.rows));
  observer_->See(&ActivationRange::q, attention_.Queries(x.rows));
  observer_->See(&ActivationRange::k, attention_.Keys(x.rows));
  observer_->See(&ActivationRange::v, attention_.Values(x.rows));
  observer_->See(&ActivationRange::attention_out, attention_.Output(x.rows));
  observer_->See(&ActivationRange::residual, x);
}

void Forward::Embed(std::span<const int32_t> tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    DequantizeRow(weights_.embedding.dtype, weights_.embedding.Slice(static_cast<size_t>(tokens[i])).data, x_.Row(i));
  }
}

Status Forward::Run(std::span<const int32_t> tokens, size_t first_position, const KvCache& kv, bool long_rope,
                    LogitRows rows, const ChunkProgress& progress, std::span<float> logits, NpuLayers* npu) {
  NM_CHECK(!tokens.empty() && tokens.size() <= max_chunk_tokens_);
  NM_CHECK(first_position + tokens.size() <= kv.capacity());
  const size_t n_logit_rows = rows == LogitRows::kNone ? 0 : logits.size() / config_.vocab_size;
  NM_CHECK(n_logit_rows <= tokens.size());
  Embed(tokens);
  attention_.SetPositions(long_rope ? long_rope_ : short_rope_, first_position, tokens.size());
  MatView x = x_.Rows(tokens.size());
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    const LayerWeights& weights = weights_.layers[layer];
    if (observer_ != nullptr) {
      observer_->BeginLayer(layer);
      observer_->See(&ActivationRange::residual, x);
    }
    if (npu != nullptr) {
      npu->Attention(layer, kv.Layer(layer), first_position, x, normed_.Rows(x.rows));
    } else {
      const RealZone zone(trace_, "attention", layer);
      NormRows(x, weights.attn_norm, weights.attn_norm_bias);
      attention_.Run(weights, kv.Layer(layer), first_position, normed_.Rows(x.rows), x);
    }
    if (observer_ != nullptr) SeeAttention(x);
    if (layer + 1 == config_.n_layers && IsCut(n_logit_rows, tokens.size(), npu)) {
      if (rows == LogitRows::kNone) return Ok{};  // keys and values are all that later chunks need
      x = x_.Rows(x.rows - n_logit_rows, n_logit_rows);
      first_position += tokens.size() - n_logit_rows;
    }
    NM_TRY(CheckFinite(x, layer, first_position));
    NormRows(x, weights.ffn_norm, weights.ffn_norm_bias);
    // One row of the last layer is no work for a device.
    const bool on_npu = npu != nullptr && config_.IsMoeLayer(layer) && x.rows == tokens.size();
    if (on_npu) {
      NM_TRY(npu->Experts(layer, normed_.Rows(x.rows), x));
    } else {
      const RealZone zone(npu == nullptr ? trace_ : nullptr, "feed-forward", layer);
      NM_TRY(ffn_.Run(layer, weights, normed_.Rows(x.rows), x));
    }
    if (choices_ != nullptr && config_.IsMoeLayer(layer)) {
      SeeChoices(layer, first_position, x.rows, on_npu ? npu : nullptr);
    }
    if (observer_ != nullptr) {
      observer_->See(&ActivationRange::ffn_in, normed_.Rows(x.rows));
      observer_->See(&ActivationRange::residual, x);
    }
    if (!progress.LayerDone(tokens.size(), layer + 1, config_.n_layers))
      return MakeError(Code::kCancelled, "prefill: stopped by the caller");
  }
  NM_TRY(CheckFinite(x, config_.n_layers - 1, first_position));
  if (rows == LogitRows::kNone) return Ok{};
  x = x_.Rows(tokens.size() - n_logit_rows, n_logit_rows);
  WriteLogits(x, logits);
  return Ok{};
}

bool Forward::IsCut(size_t n_rows, size_t n_tokens, const NpuLayers* npu) const {
  if (observer_ != nullptr || choices_ != nullptr) return false;
  return n_rows < n_tokens && (n_rows <= 1 || npu == nullptr);
}

void Forward::SeeChoices(uint32_t layer, size_t first_position, size_t n_tokens, const NpuLayers* npu) {
  const auto chosen = ffn_.chosen_experts(n_tokens);
  got_.assign(chosen.begin(), chosen.end());
  if (npu != nullptr) npu->MarkDropped(got_);
  choices_->See(layer, first_position, got_);
}

Status Forward::CheckFinite(MatView x, uint32_t layer, size_t first_position) {
  // Broken weights would otherwise end as plausible text. The scan reads what the norm reads next anyway.
  std::atomic<size_t> first_bad{x.rows};
  compute_.ForRows(x.rows, [&](size_t row) {
    uint32_t top = 0;  // largest exponent field; all ones means infinity or NaN
    for (size_t i = 0; i < x.cols; ++i) top = std::max(top, std::bit_cast<uint32_t>(x.Row(row)[i]) & 0x7f800000u);
    if (top != 0x7f800000u) return;
    size_t seen = first_bad.load();
    while (row < seen && !first_bad.compare_exchange_weak(seen, row)) {
    }
  });
  if (first_bad.load() == x.rows) return Ok{};
  return MakeError(Code::kUnsupported, "layer {}: activations at position {} are not finite: broken weights?", layer,
                   first_position + first_bad.load());
}

void Forward::NormRows(MatView x, const TensorView& weight, const TensorView& bias) {
  compute_.ForRows(x.rows, [&](size_t row) { NormRow(config_, {x.Row(row), x.cols}, weight, bias, normed_.Row(row)); });
}

void Forward::WriteLogits(MatView x, std::span<float> logits) {
  const size_t vocab_size = config_.vocab_size;
  NM_CHECK(logits.size() == x.rows * vocab_size);
  NormRows(x, weights_.output_norm, weights_.output_norm_bias);
  const MatMulJob job[] = {{normed_.Rows(x.rows), weights_.output, {logits.data(), x.rows, vocab_size, vocab_size}}};
  compute_.matmul.Run(job);
  for (size_t row = 0; row < x.rows; ++row) {
    AddBias(weights_.output_bias, logits.subspan(row * vocab_size, vocab_size));
  }
}

}  // namespace npumoe
