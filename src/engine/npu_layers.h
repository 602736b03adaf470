// SPDX-License-Identifier: Apache-2.0
// The layers of a model on an NPU, as a plan says: attention chunk by chunk, experts group by group, the rest on the
// CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/attention_block.h"
#include "engine/compute.h"
#include "engine/ffn.h"
#include "engine/worker.h"
#include "model/weights.h"
#include "moe/plan.h"
#include "moe/run_choice.h"
#include "npu/cost.h"
#include "npu/device.h"
#include "npumoe/npu.h"

namespace npumoe {

// One thread at a time; owns a feeder thread for the device. Borrows model, compute and the CPU's layer parts.
class NpuLayers {
 public:
  // The plan must have passed CheckPlan and be exact: overflow is spilled, nothing dropped. Programs are compiled when
  // a layer first needs them.
  NpuLayers(const Model& model, Plan plan, std::unique_ptr<NpuDevice> device, Compute& compute,
            AttentionBlock& attention, Ffn& ffn);

  const Plan& plan() const { return plan_; }

  // x += attention(norm(x)), keys and values stored. Router logits that the NPU computed go to ffn.logits(); Experts
  // knows for which tokens. `normed` is scratch like x.
  Status Attention(uint32_t layer, const KvView& kv, size_t first_position, MatView x, MatView normed);

  // y += experts(x) for normalised x: routes, chooses, runs both sides, combines.
  Status Experts(uint32_t layer, MatView x, MatView y);

  // Marks the beginning and end of a prefill on the clock.
  void BeginPrefill();
  void EndPrefill(double output_flops, double output_bytes);

  const RunReport& report() const { return report_; }

 private:
  struct GroupState {
    std::unique_ptr<NpuProgram> program;
    std::vector<double> npu_seconds;  // [capacities]
    bool failed = false;              // compile or run failed: on the CPU from then on
  };
  struct LayerState {
    std::unique_ptr<NpuProgram> attention;
    bool attention_failed = false;
    std::vector<GroupState> groups;
    std::vector<GroupTimes> times;  // views of groups' npu_seconds
  };

  Status RunAttentionChunk(uint32_t layer, const KvView& kv, size_t position, MatView x, size_t first_row);
  void AttentionOnCpu(uint32_t layer, const KvView& kv, size_t position, MatView x, MatView normed, size_t first_row);
  void FillAttentionInputs(const KvView& kv, size_t position, size_t kv_length, MatView x, size_t first_row);
  NpuProgram* AttentionProgram(uint32_t layer);
  NpuProgram* GroupProgram(uint32_t layer, size_t group);
  void MakeRoom(uint32_t layer);
  Status RunGroup(uint32_t layer, size_t group, uint32_t capacity, MatView x);
  void Choose(uint32_t layer, const LayerWeights& weights);
  void RepeatOnCpu(uint32_t layer, const LayerWeights& weights, MatView x, const std::vector<bool>& failed,
                   const std::vector<Error>& errors);
  double ExpertBytes(const LayerWeights& weights) const;
  double CpuSeconds(const LayerWeights& weights, std::span<const SlotRange> ranges) const;
  void FallBack(const std::string& reason);
  // Modelled CPU work on the virtual clock; returns its end.
  void CpuWork(double seconds, StageReport& stage);

  const Model& model_;
  const ModelConfig& config_;
  Plan plan_;
  std::unique_ptr<NpuDevice> device_;
  Compute& compute_;
  AttentionBlock& attention_;
  Ffn& ffn_;
  std::vector<uint32_t> permutation_;  // of a head's elements, see HeadPermutation
  std::vector<LayerState> layers_;
  std::vector<bool> has_logits_;  // [tokens of the batch]

  // Buffers of fp16 inputs and outputs, grown to the largest program.
  std::vector<std::vector<uint16_t>> inputs_, outputs_;
  std::vector<uint16_t> group_in_, group_out_;
  std::vector<float> row_k_, row_v_;  // [n_kv_heads * head_dim]
  std::vector<uint32_t> loads_;
  std::vector<SlotRange> cpu_ranges_;
  RunChoice choice_;

  // The CPU's virtual now, the NPU's last end, when the NPU may start next, and when this prefill began.
  Nanos cpu_now_ = 0, npu_end_ = 0, npu_ready_ = 0, begin_ = 0;
  RunReport report_;
  Worker feeder_;  // last: its jobs use the members above
};

}  // namespace npumoe
