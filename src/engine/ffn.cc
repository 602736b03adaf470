// SPDX-License-Identifier: Apache-2.0
#include "engine/ffn.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "engine/routing_observer.h"
#include "kernels/vector_ops.h"
#include "moe/router.h"

namespace npumoe {

Ffn::Ffn(const ModelConfig& config, Compute& compute, size_t max_tokens)
    : config_(config), compute_(compute), scatter_(compute.pool) {
  const size_t dim = config.dim;
  bool any_dense = config.n_experts == 0;
  for (const bool dense : config.dense_layer) any_dense = any_dense || dense;
  const size_t slots = config.n_experts > 0 ? max_tokens * config.top_k : 0;
  // Dense layers and layers of experts run one after the other and share the two wide buffers; the shared expert's part
  // lies behind the slots'.
  const size_t wide = std::max(any_dense ? max_tokens * config.ffn_dim : 0,
                               slots * config.expert_dim + max_tokens * config.shared_expert_dim);
  gate_.Allocate(1, wide);
  up_.Allocate(1, wide);
  if (any_dense || config.shared_expert_dim > 0) whole_out_.Allocate(max_tokens, dim);
  if (config.shared_expert_gate) shared_scale_.Allocate(max_tokens, 1);
  parts_.reserve(config.n_experts + size_t{1});
  jobs_.reserve(2 * parts_.capacity() + 1);
  if (config.n_experts == 0) return;
  router_logits_.Allocate(max_tokens, config.n_experts);
  route_scratch_.Allocate(max_tokens, config.n_experts);
  slots_out_.Allocate(slots, dim);
  experts_.resize(slots);
  weights_.resize(slots);
  tokens_.resize(slots);
  dispatch_.Reserve(max_tokens, config.top_k, config.n_experts);
  scatter_.Reserve(slots);
  all_.resize(config.n_experts);
}

size_t Ffn::scratch_bytes() const {
  return gate_.bytes() + up_.bytes() + whole_out_.bytes() + shared_scale_.bytes() + router_logits_.bytes() +
         route_scratch_.bytes() + slots_out_.bytes() + weights_.capacity() * (sizeof(float) + 2 * sizeof(uint32_t)) +
         dispatch_.slots.capacity() * (sizeof(Slot) + sizeof(uint32_t)) +
         dispatch_.expert_begin.capacity() * sizeof(uint32_t) + scatter_.scratch_bytes() +
         parts_.capacity() * sizeof(Part) + jobs_.capacity() * sizeof(MatMulJob);
}

Status Ffn::Run(size_t layer, const LayerWeights& weights, MatView x, MatView y) {
  if (!config_.IsMoeLayer(static_cast<uint32_t>(layer))) {
    RunDense(weights, x, y);
    return Ok{};
  }
  RouterLogits(weights, x);
  NM_TRY(Route(layer, weights, x.rows));
  for (uint32_t expert = 0; expert < config_.n_experts; ++expert) {
    all_[expert] = {dispatch_.expert_begin[expert], dispatch_.expert_begin[expert + 1]};
  }
  if (observer_ != nullptr) observer_->SeeChoices(std::span(experts_).first(x.rows * config_.top_k));
  RunSlots(weights, x, all_, /*shared=*/true);
  if (observer_ != nullptr) observer_->SeeOutputs(dispatch_, slots_out_.Rows(dispatch_.slots.size()));
  Combine(y);
  return Ok{};
}

void Ffn::RunDense(const LayerWeights& weights, MatView x, MatView y) {
  parts_.clear();
  AddWhole(weights.w_gate, weights.w_up, weights.w_down, 0, x);
  RunParts(weights, x, /*gate_shared=*/false);
  scatter_.Add({.whole = whole_out_.Rows(x.rows)}, y);
}

void Ffn::RunSlots(const LayerWeights& weights, MatView x, std::span<const SlotRange> ranges, bool shared) {
  NM_DCHECK(x.cols == config_.dim && ranges.size() == config_.n_experts);
  parts_.clear();
  shared = shared && config_.shared_expert_dim > 0;
  if (shared) {  // the largest first, so that small ones fill up the end
    AddWhole(weights.shared_gate, weights.shared_up, weights.shared_down, tokens_.size() * config_.expert_dim, x);
  }
  AddExperts(weights, x, ranges);
  RunParts(weights, x, shared && config_.shared_expert_gate);
}

void Ffn::Combine(MatView y, const DeviceRows* device) {
  ScatterJob job = {.expert_begin = dispatch_.expert_begin,
                    .slot_of_choice = dispatch_.slot_of_choice,
                    .weight_of_choice = chosen_weights(y.rows),
                    .top_k = config_.top_k,
                    .rows = slots_out_.Rows(dispatch_.slots.size())};
  if (device != nullptr) {
    job.experts = device->experts;
    job.halves = device->halves;
    job.halves_stride = config_.dim;
    job.scale = device->scale;
  }
  if (config_.shared_expert_dim > 0) {
    job.whole = whole_out_.Rows(y.rows);
    if (config_.shared_expert_gate) job.whole_scales = shared_scale_.Flat(y.rows);
  }
  scatter_.Add(job, y);
}

// A part for each expert with slots; the others' weights are not touched.
void Ffn::AddExperts(const LayerWeights& weights, MatView x, std::span<const SlotRange> ranges) {
  const size_t width = config_.expert_dim;
  for (uint32_t expert = 0; expert < config_.n_experts; ++expert) {
    const size_t begin = ranges[expert].begin, load = ranges[expert].end - begin;
    if (load == 0) continue;
    for (size_t slot = begin; slot < begin + load; ++slot) tokens_[slot] = dispatch_.slots[slot].token;
    parts_.push_back({.w_gate = &weights.expert_gate[expert],
                      .w_up = &weights.expert_up[expert],
                      .w_down = &weights.expert_down[expert],
                      .x = {x.data, load, x.cols, x.stride},
                      .rows = tokens_.data() + begin,
                      .gate = {gate_.Row(0).data() + begin * width, load, width, width},
                      .up = {up_.Row(0).data() + begin * width, load, width, width},
                      .out = slots_out_.Rows(begin, load)});
  }
}

// A part of all rows of x into whole_out_; `first` is its place in the wide buffers.
void Ffn::AddWhole(const TensorView& w_gate, const TensorView& w_up, const TensorView& w_down, size_t first,
                   MatView x) {
  const size_t width = w_gate.shape[0];
  parts_.push_back({.w_gate = &w_gate,
                    .w_up = &w_up,
                    .w_down = &w_down,
                    .x = x,
                    .rows = nullptr,
                    .gate = {gate_.Row(0).data() + first, x.rows, width, width},
                    .up = {up_.Row(0).data() + first, x.rows, width, width},
                    .out = whole_out_.Rows(x.rows)});
}

// An observer sees gate and up before they are multiplied; products of different types of weights are cut differently.
bool Ffn::Fused(const Part& part) const { return observer_ == nullptr && part.w_gate->dtype == part.w_up->dtype; }

void Ffn::SeeParts(float ActivationRange::*stage, MatView Part::*values) {
  if (observer_ == nullptr) return;
  for (const Part& part : parts_) observer_->See(stage, part.*values);
}

// Two lists of products for all parts together: gates and ups, then downs. With `gate_shared` also the shared expert's
// gate over all tokens.
void Ffn::RunParts(const LayerWeights& weights, MatView x, bool gate_shared) {
  const MatView scales = gate_shared ? shared_scale_.Rows(x.rows) : MatView{};
  jobs_.clear();
  for (const Part& part : parts_) {
    jobs_.push_back({part.x, *part.w_gate, part.gate, /*swiglu=*/Fused(part), part.rows});
    jobs_.push_back({part.x, *part.w_up, part.up, /*swiglu=*/false, part.rows});
  }
  if (gate_shared) jobs_.push_back({x, weights.shared_expert_gate, scales});
  compute_.matmul.Run(jobs_);

  SeeParts(&ActivationRange::gate, &Part::gate);
  SeeParts(&ActivationRange::up, &Part::up);
  for (const Part& part : parts_) {
    if (Fused(part)) continue;
    compute_.ForRows(part.gate.rows, [&](size_t row) {
      SiluMul({part.gate.Row(row), part.gate.cols}, {part.up.Row(row), part.up.cols});
    });
  }
  SeeParts(&ActivationRange::hidden, &Part::gate);
  for (size_t token = 0; token < scales.rows; ++token) {
    float& scale = *scales.Row(token);
    scale = 1.0f / (1.0f + std::exp(-scale));
  }

  jobs_.clear();
  for (const Part& part : parts_) jobs_.push_back({part.gate, *part.w_down, part.out});
  compute_.matmul.Run(jobs_);
  SeeParts(&ActivationRange::expert_out, &Part::out);
}

void Ffn::RouterLogits(const LayerWeights& weights, MatView x, size_t first_token) {
  MatMulJob job = {x, weights.router, router_logits_.Rows(first_token, x.rows)};
  job.blas = false;  // which experts a token goes to does not hang on the tokens it comes with
  compute_.matmul.Run({&job, 1});
}

Status Ffn::Route(size_t layer, const LayerWeights& weights, size_t n_tokens) {
  const size_t n_experts = config_.n_experts, top_k = config_.top_k;
  const MatView logits = router_logits_.Rows(n_tokens);
  std::atomic<bool> finite{true};
  compute_.ForRows(n_tokens, [&](size_t token) {
    float* row = logits.Row(token);
    if (!weights.router_bias.empty()) AddScaled({weights.router_bias.f32(), n_experts}, 1.0f, {row, n_experts});
    // A single bad value would choose experts at random and look like a plausible answer: say so instead.
    if (!std::all_of(row, row + n_experts, [](float v) { return std::isfinite(v); })) return finite.store(false);
    npumoe::Route(config_, {row, n_experts}, route_scratch_.Row(token),
                  std::span(experts_).subspan(token * top_k, top_k), std::span(weights_).subspan(token * top_k, top_k));
  });
  if (!finite.load()) return MakeError(Code::kUnsupported, "layer {}: router logits are not finite", layer);
  Redispatch(n_tokens);
  return Ok{};
}

void Ffn::Redispatch(size_t n_tokens) {
  BuildDispatch(chosen_experts(n_tokens), chosen_weights(n_tokens), config_.top_k, config_.n_experts, dispatch_);
}

}  // namespace npumoe
