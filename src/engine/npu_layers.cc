// SPDX-License-Identifier: Apache-2.0
#include "engine/npu_layers.h"

#include <algorithm>
#include <utility>

#include "npu/cost.h"

namespace npumoe {

size_t BatchTokens(const Plan& plan, size_t context_tokens) {
  const size_t batch = plan.order == PrefillOrder::kLayerMajor ? plan.moe_batch_tokens : plan.chunk_tokens;
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
  report.layers.resize(config_.n_layers);
  clock_.Attach(&report, trace);
  clock_.BeginPrefill();
  for (uint32_t layer = 0; layer < config_.n_layers && !loaded_; ++layer) {
    if (!programs_.Preload(layer)) break;
  }
  loaded_ = true;
}

void NpuLayers::EndPrefill(size_t n_logit_rows) {
  const TensorView& output = model_.weights().output;
  const double flops = 2.0 * static_cast<double>(output.shape.elems());
  const double bytes = static_cast<double>(ByteSize(output.dtype, output.shape).value());
  const double seconds = CpuExpertCost(static_cast<double>(n_logit_rows), flops, bytes, spec()).seconds;
  clock_.CpuWork(seconds, clock_.experts(config_.n_layers - 1), "logits");
  clock_.EndPrefill();
}

void NpuLayers::Attention(uint32_t layer, const KvView& kv, size_t first_position, MatView x, MatView normed) {
  // The planner counts on it: loads have the whole layer to hide behind.
  programs_.Prefetch((layer + 1) % config_.n_layers, layer);
  attention_.Run(layer, kv, first_position, x, normed);
}

Status NpuLayers::Experts(uint32_t layer, MatView x, MatView y) {
  for (size_t end = 0; end < x.rows; ++end) {
    const size_t begin = end;
    while (end < x.rows && !attention_.has_logits(end)) ++end;
    if (end == begin) continue;
    ffn_.RouterLogits(model_.weights().layers[layer], {x.Row(begin), end - begin, x.cols, x.stride}, begin);
  }
  return experts_.Run(layer, x, y);
}

}  // namespace npumoe
