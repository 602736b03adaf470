// SPDX-License-Identifier: Apache-2.0
#include "engine/npu_layers.h"

#include <algorithm>
#include <utility>

#include "moe/attention_plan.h"
#include "npu/cost.h"

namespace npumoe {

size_t BatchTokens(const Plan& plan, size_t context_tokens) {
  const size_t batch = plan.order == PrefillOrder::kChunkMajor ? plan.chunk_tokens : plan.moe_batch_tokens;
  return std::min(batch, context_tokens);
}

NpuLayers::NpuLayers(const Model& model, Plan plan, std::unique_ptr<NpuDevice> device, Compute& compute,
                     AttentionBlock& attention, Ffn& ffn)
    : model_(model),
      config_(model.config()),
      plan_(std::move(plan)),
      device_(std::move(device)),
      ffn_(ffn),
      clock_(*device_),
      programs_(model, plan_, *device_, clock_, compute.pool),
      attention_(model, plan_, programs_, clock_, compute, attention, ffn),
      experts_(model, plan_, programs_, clock_, ffn) {}

void NpuLayers::BeginPrefill(RunReport& report, Trace* trace) {
  report.npu = spec().name;
  report.note = device_->Note();
  report_ = &report;
  report.order = ToString(plan_.order == PrefillOrder::kWavefront ? PrefillOrder::kLayerMajor : plan_.order);
  report.layers.resize(config_.n_layers);
  clock_.Attach(&report, trace);
  clock_.BeginPrefill();
  for (uint32_t layer = 0; layer < config_.n_layers && !loaded_; ++layer) {
    if (!programs_.Preload(layer)) break;
  }
  loaded_ = true;
}

size_t NpuLayers::BeginBatch(size_t n_tokens) {
  const size_t first_half = FirstHalf(plan_, static_cast<uint32_t>(n_tokens));
  if (first_half < n_tokens) report_->order = ToString(PrefillOrder::kWavefront);
  return first_half;
}

void NpuLayers::EndPrefill(size_t n_logit_rows) {
  const TensorView& output = model_.weights().output;
  const double flops = 2.0 * static_cast<double>(output.shape.elems());
  const double bytes = static_cast<double>(ByteSize(output.dtype, output.shape).value());
  const double seconds = CpuExpertCost(static_cast<double>(n_logit_rows), flops, bytes, spec()).seconds;
  clock_.CpuWork(seconds, clock_.experts(config_.n_layers - 1), "logits");
  clock_.EndPrefill();
}

void NpuLayers::Attention(const AttentionRows& rows) {
  // The planner counts on it: loads have the whole layer to hide behind.
  programs_.Prefetch((rows.layer + 1) % config_.n_layers, rows.layer);
  attention_.Run(rows);
}

void NpuLayers::CountDense(uint32_t layer, size_t n_tokens) {
  const LayerWeights& weights = model_.weights().layers[layer];
  clock_.CpuWork(CpuFfnSeconds(weights.w_gate, weights.w_up, weights.w_down, n_tokens, spec()), clock_.experts(layer),
                 fmt::format("layer {} dense FFN", layer));
}

Status NpuLayers::Experts(uint32_t layer, MatView x, MatView y, const AttentionRows* other) {
  for (size_t end = 0; end < x.rows; ++end) {
    const size_t begin = end;
    while (end < x.rows && !attention_.has_logits(end)) ++end;
    if (end == begin) continue;
    ffn_.RouterLogits(model_.weights().layers[layer], {x.Row(begin), end - begin, x.cols, x.stride}, begin);
  }
  if (other == nullptr) return experts_.Run(layer, x, y);
  // In the next layer already? Then this one's programs are still needed, and only afterwards make room.
  if (other->layer == layer) programs_.Prefetch((layer + 1) % config_.n_layers, layer);
  if (plan_.layers[other->layer].attention != AttentionPlace::kNpu || programs_.Attention(other->layer) == nullptr) {
    NM_TRY(experts_.Run(layer, x, y));
    attention_.Run(*other);
    return Ok{};
  }
  const double copies = AttentionCopySeconds(config_, spec(), static_cast<double>(other->x.rows));
  const AttentionCost cost = ExpectedAttentionCost(
      config_, spec(), AttentionPlace::kNpu, config_.IsMoeLayer(other->layer), plan_.chunk_tokens,
      other->first_position, other->first_position + other->x.rows, plan_.kv_buckets, plan_.attention_weights);
  NpuExperts::Beside beside{{cost.npu_seconds + copies, copies},
                            [&](Nanos begin) { return attention_.RunOnNpu(*other, begin); },
                            {}};
  NM_TRY(experts_.Run(layer, x, y, &beside));
  clock_.WaitUntil(beside.done.end);
  attention_.Run(*other, beside.done.n_tokens);
  return Ok{};
}

}  // namespace npumoe
