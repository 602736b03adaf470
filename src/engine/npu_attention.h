// SPDX-License-Identifier: Apache-2.0
// Attention of a layer on an NPU, chunk by chunk; what does not fit there runs on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/attention_block.h"
#include "engine/compute.h"
#include "engine/ffn.h"
#include "engine/npu_programs.h"
#include "engine/run_clock.h"
#include "model/weights.h"
#include "moe/plan.h"

namespace npumoe {

// One thread at a time. Borrows everything it is made from.
class NpuAttention {
 public:
  NpuAttention(const Model& model, const Plan& plan, NpuPrograms& programs, RunClock& clock, Compute& compute,
               AttentionBlock& attention, Ffn& ffn);

  // x += attention(norm(x)), keys and values stored. Router logits that the NPU computed go to ffn.logits().
  void Run(uint32_t layer, const KvView& kv, size_t first_position,
           MatView x,        // [tokens, dim]
           MatView normed);  // [tokens, dim], scratch

  size_t buffer_bytes() const;

  // Whether the last Run wrote the router logits of this token.
  bool has_logits(size_t token) const { return has_logits_[token]; }

 private:
  Status RunChunk(uint32_t layer, const KvView& kv, size_t position, MatView x, size_t first_row);
  void RunOnCpu(uint32_t layer, const KvView& kv, size_t position, MatView x, MatView normed, size_t first_row);
  void FillMask(size_t position, size_t kv_length);
  void FillCache(const KvView& kv, size_t position, size_t kv_length);
  void FillInputs(const KvView& kv, size_t position, size_t kv_length, MatView x, size_t first_row);
  bool TakeOutputs(const KvView& kv, size_t position, MatView x, size_t first_row, bool moe);

  const Model& model_;
  const ModelConfig& config_;
  const Plan& plan_;
  NpuPrograms& programs_;
  RunClock& clock_;
  Compute& compute_;
  AttentionBlock& attention_;
  Ffn& ffn_;
  std::vector<uint32_t> permutation_;  // of a head's elements, see HeadPermutation
  bool permutes_ = false;
  std::vector<bool> has_logits_;  // [tokens of the batch]
  // fp16 in the order of the graph's inputs (x, cos, sin, mask, k_cache, v_cache) and outputs (delta, k, v, router).
  std::vector<uint16_t> inputs_[6], outputs_[4];
  std::vector<const float*> rows_;    // of the chunk
  std::vector<float*> out_rows_;      // likewise
  std::vector<float> row_k_, row_v_;  // [n_kv_heads * head_dim]
};

}  // namespace npumoe
