// SPDX-License-Identifier: Apache-2.0
#include "engine/ffn.h"

#include <algorithm>
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
  const size_t dense_width = std::max<size_t>(any_dense ? config.ffn_dim : 0, config.shared_expert_dim);
  // Dense, shared and routed FFNs run one after the other and share the two wide buffers.
  const size_t wide = std::max(max_tokens * dense_width, slots * config.expert_dim);
  gate_.Allocate(1, wide);
  up_.Allocate(1, wide);
  if (dense_width > 0) dense_out_.Allocate(max_tokens, dim);
  if (config.n_experts == 0) return;
  router_logits_.Allocate(max_tokens, config.n_experts);
  route_scratch_.Allocate(max_tokens, config.n_experts);
  packed_.Allocate(slots, dim);
  packed_out_.Allocate(slots, dim);
  experts_.resize(slots);
  weights_.resize(slots);
  dispatch_.Reserve(max_tokens, config.top_k, config.n_experts);
  all_.resize(config.n_experts);
  jobs_.reserve(size_t{2} * config.n_experts);
}

size_t Ffn::scratch_bytes() const {
  return gate_.bytes() + up_.bytes() + dense_out_.bytes() + router_logits_.bytes() + route_scratch_.bytes() +
         packed_.bytes() + packed_out_.bytes() + weights_.capacity() * (sizeof(float) + sizeof(uint32_t)) +
         dispatch_.slots.capacity() * (sizeof(Slot) + sizeof(uint32_t)) +
         dispatch_.expert_begin.capacity() * sizeof(uint32_t) + jobs_.capacity() * sizeof(MatMulJob);
}

Status Ffn::Run(size_t layer, const LayerWeights& weights, MatView x, MatView y) {
  if (!config_.IsMoeLayer(static_cast<uint32_t>(layer))) {
    const MatView out = dense_out_.Rows(x.rows);
    RunDense(weights.w_gate, weights.w_up, weights.w_down, x, out);
    compute_.ForRows(x.rows, [&](size_t row) { AddScaled({out.Row(row), out.cols}, 1.0f, {y.Row(row), y.cols}); });
    return Ok{};
  }
  RouterLogits(weights, x);
  NM_TRY(Route(layer, weights, x.rows));
  for (uint32_t expert = 0; expert < config_.n_experts; ++expert) {
    all_[expert] = {dispatch_.expert_begin[expert], dispatch_.expert_begin[expert + 1]};
  }
  if (observer_ != nullptr) observer_->SeeChoices(std::span(experts_).first(x.rows * config_.top_k));
  RunSlots(weights, x, all_);
  if (observer_ != nullptr) observer_->SeeOutputs(dispatch_, packed_out_.Rows(dispatch_.slots.size()));
  Combine(weights, x, y);
  return Ok{};
}

// An observer sees gate and up before they are multiplied; products of different types of weights are cut differently.
bool Ffn::Fused(const TensorView& w_gate, const TensorView& w_up) const {
  return observer_ == nullptr && w_gate.dtype == w_up.dtype;
}

void Ffn::SeeGateUp(MatView gate, MatView up) {
  if (observer_ == nullptr) return;
  observer_->See(&ActivationRange::gate, gate);
  observer_->See(&ActivationRange::up, up);
}

void Ffn::Combine(const LayerWeights& weights, MatView x, MatView y, const DeviceRows* device) {
  if (device != nullptr) {
    const size_t n_slots = dispatch_.slots.size();
    scatter_.Add({device->experts, dispatch_.expert_begin, dispatch_.slot_of_choice, chosen_weights(x.rows),
                  config_.top_k, device->halves, config_.dim, device->scale, packed_out_.Rows(n_slots)},
                 y);
  } else {
    compute_.ForRows(x.rows, [&](size_t token) {
      ScatterAdd(packed_out_.Flat(dispatch_.slots.size()), config_.dim, dispatch_, config_.top_k, token,
                 {y.Row(token), y.cols});
    });
  }
  if (config_.shared_expert_dim > 0) RunShared(weights, x, y);
}

void Ffn::RunDense(const TensorView& w_gate, const TensorView& w_up, const TensorView& w_down, MatView x, MatView out) {
  const size_t width = w_gate.shape[0];
  const MatView gate{gate_.Row(0).data(), x.rows, width, width};
  const MatView up{up_.Row(0).data(), x.rows, width, width};
  const bool fused = Fused(w_gate, w_up);
  const MatMulJob wide[] = {{x, w_gate, gate, /*swiglu=*/fused}, {x, w_up, up}};
  compute_.matmul.Run(wide);
  if (!fused) {
    SeeGateUp(gate, up);
    compute_.ForRows(x.rows, [&](size_t row) { SiluMul({gate.Row(row), width}, {up.Row(row), width}); });
  }
  const MatMulJob down[] = {{gate, w_down, out}};
  compute_.matmul.Run(down);
  if (observer_ == nullptr) return;
  observer_->See(&ActivationRange::hidden, gate);
  observer_->See(&ActivationRange::expert_out, out);
}

void Ffn::RunShared(const LayerWeights& weights, MatView x, MatView y) {
  const MatView out = dense_out_.Rows(x.rows);
  RunDense(weights.shared_gate, weights.shared_up, weights.shared_down, x, out);
  const bool gated = config_.shared_expert_gate;
  compute_.ForRows(x.rows, [&](size_t row) {
    float scale = 1.0f;
    if (gated) {
      double dot = 0;
      const float* gate = weights.shared_expert_gate.f32();
      for (size_t i = 0; i < x.cols; ++i) dot += double{x.Row(row)[i]} * gate[i];
      scale = static_cast<float>(1.0 / (1.0 + std::exp(-dot)));
    }
    AddScaled({out.Row(row), out.cols}, scale, {y.Row(row), y.cols});
  });
}

void Ffn::RouterLogits(const LayerWeights& weights, MatView x, size_t first_token) {
  MatMulJob job = {x, weights.router, router_logits_.Rows(first_token, x.rows)};
  job.blas = false;  // which experts a token goes to does not hang on the tokens it comes with
  compute_.matmul.Run({&job, 1});
}

Status Ffn::Route(size_t layer, const LayerWeights& weights, size_t n_tokens) {
  const size_t n_experts = config_.n_experts, top_k = config_.top_k;
  const MatView logits = router_logits_.Rows(n_tokens);
  for (size_t token = 0; token < n_tokens; ++token) {
    float* row = logits.Row(token);
    if (!weights.router_bias.empty()) AddScaled({weights.router_bias.f32(), n_experts}, 1.0f, {row, n_experts});
    // A single bad value would choose experts at random and look like a plausible answer: say so instead.
    if (!std::all_of(row, row + n_experts, [](float v) { return std::isfinite(v); })) {
      return MakeError(Code::kUnsupported, "layer {}: router logits are not finite", layer);
    }
  }
  compute_.ForRows(n_tokens, [&](size_t token) {
    npumoe::Route(config_, {logits.Row(token), n_experts}, route_scratch_.Row(token),
                  std::span(experts_).subspan(token * top_k, top_k), std::span(weights_).subspan(token * top_k, top_k));
  });
  Redispatch(n_tokens);
  return Ok{};
}

void Ffn::Redispatch(size_t n_tokens) {
  BuildDispatch(chosen_experts(n_tokens), chosen_weights(n_tokens), config_.top_k, config_.n_experts, dispatch_);
}

// body(expert, begin, end) for the slots of every range, on all threads; inline when a token or two have few.
template <typename Body>
void Ffn::ForSlots(std::span<const SlotRange> ranges, const Body& body) {
  constexpr size_t kInlineSlots = 32;  // copying a row takes less than a microsecond, waking a thread several
  const auto one = [&](size_t expert) {
    if (ranges[expert].begin < ranges[expert].end) body(expert, ranges[expert].begin, ranges[expert].end);
  };
  if (dispatch_.slots.size() > kInlineSlots) return compute_.ForRows(ranges.size(), one);
  for (size_t expert = 0; expert < ranges.size(); ++expert) one(expert);
}

void Ffn::RunSlots(const LayerWeights& weights, MatView x, std::span<const SlotRange> ranges) {
  NM_DCHECK(x.stride == config_.dim && ranges.size() == config_.n_experts);
  const size_t width = config_.expert_dim;
  const std::span<const float> rows(x.data, x.rows * x.stride);
  float* const gate = gate_.Row(0).data();
  float* const up = up_.Row(0).data();
  ForSlots(ranges, [&](size_t, size_t begin, size_t end) {
    Pack(rows, config_.dim, std::span(dispatch_.slots).subspan(begin, end - begin),
         packed_.Flat(end).subspan(begin * config_.dim));
  });
  Multiply(weights, ranges, /*down=*/false);
  const MatView gates{gate, dispatch_.slots.size(), width, width};
  SeeGateUp(gates, {up, gates.rows, width, width});
  ForSlots(ranges, [&](size_t expert, size_t begin, size_t end) {
    if (Fused(weights.expert_gate[expert], weights.expert_up[expert])) return;
    for (size_t slot = begin; slot < end; ++slot) SiluMul({gate + slot * width, width}, {up + slot * width, width});
  });
  if (observer_ != nullptr) observer_->See(&ActivationRange::hidden, gates);
  Multiply(weights, ranges, /*down=*/true);
}

// One job per expert and projection; experts without slots are not touched.
void Ffn::Multiply(const LayerWeights& weights, std::span<const SlotRange> ranges, bool down) {
  const size_t width = config_.expert_dim;
  jobs_.clear();
  for (uint32_t expert = 0; expert < config_.n_experts; ++expert) {
    const size_t begin = ranges[expert].begin, load = ranges[expert].end - begin;
    if (load == 0) continue;
    const MatView gate{gate_.Row(0).data() + begin * width, load, width, width};
    const MatView up{up_.Row(0).data() + begin * width, load, width, width};
    if (down) {
      jobs_.push_back({gate, weights.expert_down[expert], packed_out_.Rows(begin, load)});
    } else {
      const bool fused = Fused(weights.expert_gate[expert], weights.expert_up[expert]);
      jobs_.push_back({packed_.Rows(begin, load), weights.expert_gate[expert], gate, /*swiglu=*/fused});
      jobs_.push_back({packed_.Rows(begin, load), weights.expert_up[expert], up});
    }
  }
  compute_.matmul.Run(jobs_);
}

}  // namespace npumoe
