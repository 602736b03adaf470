// SPDX-License-Identifier: Apache-2.0
// The experts of a layer, split between an NPU and the CPU after the router has spoken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/cache_lines.h"
#include "engine/ffn.h"
#include "engine/npu_attention.h"
#include "engine/npu_programs.h"
#include "engine/run_clock.h"
#include "engine/worker.h"
#include "model/weights.h"
#include "moe/plan.h"
#include "moe/run_choice.h"

namespace npumoe {

// Modelled seconds of the CPU for a gated FFN of these weights.
double CpuFfnSeconds(const TensorView& gate, const TensorView& up, const TensorView& down, size_t n_tokens,
                     const NpuSpec& spec);

// One thread at a time; owns a thread that packs and unpacks, one that waits for the device, and one for what is beside. Borrows everything it
// is made from.
class NpuExperts {
 public:
  NpuExperts(const Model& model, const Plan& plan, NpuPrograms& programs, RunClock& clock, Ffn& ffn);

  // What the device does after the groups while the CPU is still in the experts: attention of other tokens.
  struct Beside {
    RunOption seconds;                                          // of it, as modelled
    std::function<NpuAttention::Done(Nanos begin)> run;         // on a thread of its own
    NpuAttention::Done done;                                    // what it returned; nothing if Run failed
  };
  // y += experts(x) for normalised x and the router logits in ffn.logits(). Fails like Ffn::Route, before anything ran.
  Status Run(uint32_t layer,
             MatView x,                  // [tokens, dim]
             MatView y,                  // [tokens, dim]
             Beside* beside = nullptr);  // null for nothing

  // Replaces what the last Run dropped by kNoExpert. choices: [tokens, top_k], what its tokens chose.
  void MarkDropped(std::span<uint32_t> choices) const;

  size_t buffer_bytes() const;

 private:
  // One group's dispatch of this run.
  struct Job {
    size_t group = 0;
    uint32_t capacity = 0;
    Nanos ready = 0;
    uint64_t rows = 0;  // that carry a token
    std::optional<Result<Interval>> ran;
  };
  struct Buffers {
    CacheLines<uint16_t> in, out;  // [experts, dim, capacity] fp16
  };

  void RerouteOverflow(uint32_t layer, size_t n_tokens);
  void PruneOverflow(uint32_t layer);
  void Choose(uint32_t layer, const LayerWeights& weights, size_t n_tokens, const Beside* beside);
  void RunGroups(uint32_t layer, MatView x);
  double Pack(uint32_t layer, Job& job, MatView x, Buffers& buffers);
  void Launch(uint32_t layer, Job& job, Buffers& buffers);
  void Count(uint32_t layer, const Job& job);
  double Unpack(uint32_t layer, Job& job, const Buffers& buffers);
  double UnpackLast(uint32_t layer);
  void RepeatOnCpu(uint32_t layer, const LayerWeights& weights, MatView x);
  void MoveToCpu(uint32_t layer, size_t group);
  double CpuSeconds(const LayerWeights& weights) const;

  const Model& model_;
  const ModelConfig& config_;
  const Plan& plan_;
  NpuPrograms& programs_;
  RunClock& clock_;
  Ffn& ffn_;
  std::vector<LayerPlan> usable_;  // [n_layers] the plan, refused groups' experts on the CPU

  // Of the run at hand.
  std::vector<uint32_t> kept_;         // [n_experts] rows to be computed; the expert's later slots are pruned
  std::vector<SlotRange> cpu_ranges_;  // [n_experts] rows that are the CPU's
  std::vector<GroupTimes> times_;      // [groups]
  RunChoice choice_;
  std::vector<Job> jobs_;
  std::vector<const float*> in_rows_;  // of one expert
  std::vector<uint16_t*> out_rows_;
  CacheLines<uint16_t> halves_;          // [slots, dim] outputs of the device
  std::vector<ExpertOutput> on_device_;  // [n_experts] which of the slots are there
  Buffers buffers_[2];                   // one is packed or unpacked while the other runs
  double pack_seconds_ = 0;
  Nanos groups_end_ = 0;  // of the last group

  Worker queue_, packer_, beside_;  // last: their jobs use the members above
};

}  // namespace npumoe
