// SPDX-License-Identifier: Apache-2.0
// The feed-forward half of a layer: dense, or routed experts with an optional shared expert.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/buffer.h"
#include "engine/compute.h"
#include "kernels/scatter.h"
#include "model/config.h"
#include "model/weights.h"
#include "moe/dispatch.h"
#include "npumoe/result.h"

namespace npumoe {

class RoutingObserver;
struct ActivationRange;

// Slots [begin, end) of one expert.
struct SlotRange {
  uint32_t begin = 0, end = 0;
};

// Scratch is allocated at construction; nothing allocates afterwards. One thread at a time, but RunSlots may work on
// some slots while another thread writes SlotOutput of others.
class Ffn {
 public:
  // `config` and `compute` are borrowed and must outlive this.
  Ffn(const ModelConfig& config, Compute& compute, size_t max_tokens);

  // y += ffn(x), all of it on the CPU. Fails (kUnsupported) when router logits are not finite, naming the layer.
  Status Run(size_t layer, const LayerWeights& weights,
             MatView x,   // [tokens, dim], normalised
             MatView y);  // [tokens, dim]

  // The parts of a MoE layer, for a caller that computes some slots elsewhere: logits (RouterLogits or written from
  // outside), Route, then every slot's output by RunSlots or written to SlotOutput, then Combine.
  void RouterLogits(const LayerWeights& weights, MatView x, size_t first_token = 0);
  MatView logits(size_t n_tokens) { return router_logits_.Rows(n_tokens); }  // [tokens, n_experts]
  Status Route(size_t layer, const LayerWeights& weights, size_t n_tokens);
  Dispatch& dispatch() { return dispatch_; }
  // What Route chose, [tokens, top_k]; whoever changes it calls Redispatch.
  std::span<uint32_t> chosen_experts(size_t n_tokens) { return std::span(experts_).first(n_tokens * config_.top_k); }
  std::span<float> chosen_weights(size_t n_tokens) { return std::span(weights_).first(n_tokens * config_.top_k); }
  void Redispatch(size_t n_tokens);
  // Outputs of the slots of `ranges` [n_experts]; with `shared`, of the shared expert too, if the model has one. A
  // Combine wants the shared expert's of exactly one call.
  void RunSlots(const LayerWeights& weights, MatView x, std::span<const SlotRange> ranges, bool shared);
  std::span<float> SlotOutput(size_t slot) { return slots_out_.Row(slot); }  // [dim]
  // y += weighted outputs of all slots in order of choice, then the shared expert's. With `device`, the outputs of
  // slots that it counts are its fp16 rows.
  struct DeviceRows {
    std::span<const ExpertOutput> experts;  // [n_experts]
    const uint16_t* halves = nullptr;       // [slots, dim]
    float scale = 1;                        // of what the halves hold
  };
  void Combine(MatView y, const DeviceRows* device = nullptr);

  // From now on Run shows `observer` what it does; nullptr ends it. Borrowed. Not for callers of the parts: all slots
  // of a dispatch must be computed here.
  void Observe(RoutingObserver* observer) { observer_ = observer; }

  size_t scratch_bytes() const;

 private:
  // One gated FFN over some rows of x: an expert, the shared expert, or a dense layer.
  struct Part {
    const TensorView *w_gate, *w_up, *w_down;
    ConstMatView x;        // [part's rows, dim]
    const uint32_t* rows;  // which rows of x they are, or nullptr: the first ones
    MatView gate, up;      // [part's rows, width]
    MatView out;           // [part's rows, dim]
  };

  void RunDense(const LayerWeights& weights, MatView x, MatView y);
  void AddExperts(const LayerWeights& weights, MatView x, std::span<const SlotRange> ranges);
  void AddWhole(const TensorView& w_gate, const TensorView& w_up, const TensorView& w_down, size_t first, MatView x);
  void RunParts(const LayerWeights& weights, MatView x, bool gate_shared);
  // Whether the products of gate and up end in SwiGLU.
  bool Fused(const Part& part) const;
  void SeeParts(float ActivationRange::*stage, MatView Part::*values);

  const ModelConfig& config_;
  Compute& compute_;
  RowBuffer gate_, up_;      // [tokens, ffn_dim], or [slots, expert_dim] and behind it [tokens, shared_expert_dim]
  RowBuffer whole_out_;      // [tokens, dim], dense FFN or shared expert
  RowBuffer shared_scale_;   // [tokens, 1] of the shared expert, where it has a gate
  RowBuffer router_logits_;  // [tokens, n_experts]
  RowBuffer route_scratch_;  // [tokens, n_experts]
  RowBuffer slots_out_;      // [slots, dim]
  std::vector<uint32_t> experts_;  // [tokens, top_k]
  std::vector<float> weights_;     // [tokens, top_k]
  std::vector<SlotRange> all_;     // [n_experts] every slot
  std::vector<uint32_t> tokens_;   // [slots] as in the dispatch
  Dispatch dispatch_;
  Scatter scatter_;
  std::vector<Part> parts_;
  std::vector<MatMulJob> jobs_;
  RoutingObserver* observer_ = nullptr;
};

}  // namespace npumoe
