// SPDX-License-Identifier: Apache-2.0
// The layers of a model on an NPU, as a plan says: attention chunk by chunk, experts group by group, the rest on the
// CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/attention_block.h"
#include "engine/compute.h"
#include "engine/ffn.h"
#include "engine/npu_attention.h"
#include "engine/npu_experts.h"
#include "engine/npu_programs.h"
#include "engine/run_clock.h"
#include "model/weights.h"
#include "moe/plan.h"
#include "npu/device.h"
#include "npumoe/npu.h"

namespace npumoe {

// Prompt tokens that go through all layers together, in a context of that length.
size_t BatchTokens(const Plan& plan, size_t context_tokens);

// One thread at a time. Borrows model, compute and the CPU's layer parts; must stay where it is.
class NpuLayers {
 public:
  // The plan must have passed CheckPlan.
  NpuLayers(const Model& model, Plan plan, std::unique_ptr<NpuDevice> device, Compute& compute,
            AttentionBlock& attention, Ffn& ffn);
  NpuLayers(const NpuLayers&) = delete;
  NpuLayers& operator=(const NpuLayers&) = delete;

  const Plan& plan() const { return plan_; }
  const NpuSpec& spec() const { return device_->Spec(); }
  // Memory of this process that the device's programs and their inputs and outputs have taken at most.
  size_t host_bytes() const {
    return programs_.peak_host_bytes() + attention_.buffer_bytes() + experts_.buffer_bytes();
  }

  // Begins a prefill, which counts into `report` (and `trace` unless it is null) until EndPrefill. The first one loads
  // what fits, before its time begins.
  void BeginPrefill(RunReport& report, Trace* trace);
  // `n_logit_rows` rows of logits were computed on the CPU.
  void EndPrefill(size_t n_logit_rows);

  // Begins a batch of a prefill. Returns how many of its tokens are the first half; all when it goes through as one.
  size_t BeginBatch(size_t n_tokens);

  using AttentionRows = NpuAttention::Rows;
  // x += attention(norm(x)), keys and values stored.
  void Attention(const AttentionRows& rows);
  // y += experts(x) for normalised x, the tokens of the last attention. With `other`, its attention runs as well, beside
  // the experts as far as the NPU runs it.
  Status Experts(uint32_t layer, MatView x, MatView y, const AttentionRows* other = nullptr);
  // The FFN of a dense layer ran on the CPU for so many tokens.
  void CountDense(uint32_t layer, size_t n_tokens);
  // Replaces what the last Experts dropped by kNoExpert. choices: [tokens, top_k], what its tokens chose.
  void MarkDropped(std::span<uint32_t> choices) const { experts_.MarkDropped(choices); }

 private:
  const Model& model_;
  const ModelConfig& config_;
  const Plan plan_;
  const std::unique_ptr<NpuDevice> device_;
  Ffn& ffn_;
  RunClock clock_;
  NpuPrograms programs_;
  NpuAttention attention_;
  NpuExperts experts_;
  bool loaded_ = false;
  RunReport* report_ = nullptr;
};

}  // namespace npumoe
