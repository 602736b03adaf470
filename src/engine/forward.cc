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

Error Stopped() { return {Code::kCancelled, "prefill: stopped by the caller"}; }

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
  const size_t n_first = npu == nullptr ? tokens.size() : npu->BeginBatch(tokens.size());
  if (n_first < tokens.size()) {
    NM_TRY(RunHalves(tokens.size(), n_first, first_position, kv, n_logit_rows, progress, *npu));
  } else {
    NM_TRY(RunLayers(tokens.size(), first_position, kv, n_logit_rows, progress, npu));
  }
  if (rows == LogitRows::kNone) return Ok{};
  const Part last = PartOf(tokens.size() - n_logit_rows, n_logit_rows, first_position);
  NM_TRY(CheckRows(last.x, config_.n_layers - 1, last.first_position, [](size_t) {}));
  WriteLogits(last.x, logits);
  return Ok{};
}

Forward::Part Forward::PartOf(size_t first_row, size_t n_rows, size_t first_position) {
  return {first_row, first_position + first_row, x_.Rows(first_row, n_rows), normed_.Rows(first_row, n_rows)};
}

Status Forward::RunLayers(size_t n_tokens, size_t first_position, const KvCache& kv, size_t n_logit_rows,
                          const ChunkProgress& progress, NpuLayers* npu) {
  Part part = PartOf(0, n_tokens, first_position);
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    if (observer_ != nullptr) {
      observer_->BeginLayer(layer);
      observer_->See(&ActivationRange::residual, part.x);
    }
    AttentionOf(layer, part, kv, npu);
    if (observer_ != nullptr) SeeAttention(part.x);
    if (layer + 1 == config_.n_layers && IsCut(n_logit_rows, n_tokens, npu)) {
      if (n_logit_rows == 0) return Ok{};  // keys and values are all that later chunks need
      part = PartOf(n_tokens - n_logit_rows, n_logit_rows, first_position);
    }
    // One row of the last layer is no work for a device.
    NM_TRY(FeedForwardOf(layer, part, part.x.rows == n_tokens ? npu : nullptr));
    if (!progress.LayerDone(n_tokens, layer + 1, config_.n_layers)) return Stopped();
  }
  return Ok{};
}

Status Forward::RunHalves(size_t n_tokens, size_t n_first, size_t first_position, const KvCache& kv,
                          size_t n_logit_rows, const ChunkProgress& progress, NpuLayers& npu) {
  const Part halves[] = {PartOf(0, n_first, first_position), PartOf(n_first, n_tokens - n_first, first_position)};
  const uint32_t n_steps = 2 * config_.n_layers;
  const bool cut = IsCut(n_logit_rows, n_tokens, &npu);
  for (uint32_t step = 0; step <= n_steps; ++step) {
    // The half that goes through attention, and the other one, half a layer behind.
    const Part &ahead = halves[step % 2], &behind = halves[(step + 1) % 2];
    const uint32_t layer = step / 2, layer_behind = (step - 1) / 2;
    NpuLayers::AttentionRows attention;
    if (step < n_steps) {
      attention = {layer, kv.Layer(layer), ahead.first_position, ahead.first_row, ahead.x, ahead.normed};
    }
    const bool last_layer = step > 0 && layer_behind + 1 == config_.n_layers;
    if (step == 0 || (cut && last_layer)) {
      if (step < n_steps) npu.Attention(attention);
    } else {
      NM_TRY(FeedForwardOf(layer_behind, behind, &npu, step < n_steps ? &attention : nullptr));
    }
    if (!progress.LayerDone(n_tokens, step, n_steps)) return Stopped();
  }
  if (!cut || n_logit_rows == 0) return Ok{};
  return FeedForwardOf(config_.n_layers - 1, PartOf(n_tokens - n_logit_rows, n_logit_rows, first_position), nullptr);
}

void Forward::AttentionOf(uint32_t layer, const Part& part, const KvCache& kv, NpuLayers* npu) {
  if (npu != nullptr) {
    npu->Attention({layer, kv.Layer(layer), part.first_position, part.first_row, part.x, part.normed});
    return;
  }
  const LayerWeights& weights = weights_.layers[layer];
  const RealZone zone(trace_, "attention", layer);
  NormRows(part.x, weights.attn_norm, weights.attn_norm_bias, part.normed);
  attention_.Run(weights, kv.Layer(layer), part.first_position, part.normed, part.x);
}

Status Forward::FeedForwardOf(uint32_t layer, const Part& part, NpuLayers* npu, const NpuLayers::AttentionRows* other) {
  const LayerWeights& weights = weights_.layers[layer];
  NM_TRY(CheckAndNormRows(part, weights.ffn_norm, weights.ffn_norm_bias, layer));
  const bool on_npu = npu != nullptr && config_.IsMoeLayer(layer);
  if (on_npu) {
    NM_TRY(npu->Experts(layer, part.normed, part.x, other));
  } else {
    const RealZone zone(npu == nullptr ? trace_ : nullptr, "feed-forward", layer);
    NM_TRY(ffn_.Run(layer, weights, part.normed, part.x));
    if (npu != nullptr) npu->CountDense(layer, part.x.rows);
    if (other != nullptr) npu->Attention(*other);
  }
  if (choices_ != nullptr && config_.IsMoeLayer(layer)) {
    SeeChoices(layer, part.first_position, part.x.rows, on_npu ? npu : nullptr);
  }
  if (observer_ != nullptr) {
    observer_->See(&ActivationRange::ffn_in, part.normed);
    observer_->See(&ActivationRange::residual, part.x);
  }
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

template <typename Body>
Status Forward::CheckRows(MatView x, uint32_t layer, size_t first_position, const Body& body) {
  // Broken weights would otherwise end as plausible text.
  std::atomic<size_t> first_bad{x.rows};
  compute_.ForRows(x.rows, [&](size_t row) {
    uint32_t top = 0;  // largest exponent field; all ones means infinity or NaN
    for (size_t i = 0; i < x.cols; ++i) top = std::max(top, std::bit_cast<uint32_t>(x.Row(row)[i]) & 0x7f800000u);
    if (top != 0x7f800000u) return body(row);
    size_t seen = first_bad.load();
    while (row < seen && !first_bad.compare_exchange_weak(seen, row)) {
    }
  });
  if (first_bad.load() == x.rows) return Ok{};
  return MakeError(Code::kUnsupported, "layer {}: activations at position {} are not finite: broken weights?", layer,
                   first_position + first_bad.load());
}

Status Forward::CheckAndNormRows(const Part& part, const TensorView& weight, const TensorView& bias, uint32_t layer) {
  return CheckRows(part.x, layer, part.first_position,
                   [&](size_t row) { NormOne(part.x, row, weight, bias, part.normed); });
}

void Forward::NormOne(MatView x, size_t row, const TensorView& weight, const TensorView& bias, MatView normed) const {
  NormRow(config_, {x.Row(row), x.cols}, weight, bias, {normed.Row(row), normed.cols});
}

void Forward::NormRows(MatView x, const TensorView& weight, const TensorView& bias, MatView normed) {
  compute_.ForRows(x.rows, [&](size_t row) { NormOne(x, row, weight, bias, normed); });
}

void Forward::WriteLogits(MatView x, std::span<float> logits) {
  const size_t vocab_size = config_.vocab_size;
  NM_CHECK(logits.size() == x.rows * vocab_size);
  const MatView normed = normed_.Rows(x.rows);
  NormRows(x, weights_.output_norm, weights_.output_norm_bias, normed);
  const MatMulJob job[] = {{normed, weights_.output, {logits.data(), x.rows, vocab_size, vocab_size}}};
  compute_.matmul.Run(job);
  for (size_t row = 0; row < x.rows; ++row) {
    AddBias(weights_.output_bias, logits.subspan(row * vocab_size, vocab_size));
  }
}

}  // namespace npumoe
