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

  // Tokens of a layer.
  struct Rows {
    uint32_t layer = 0;
    KvView kv;
    size_t first_position = 0;
    size_t batch_row = 0;  // where they begin in AttentionBlock::SetPositions
    MatView x;             // [tokens, dim]
    MatView normed;        // [tokens, dim], scratch
  };
  // x += attention(norm(x)), keys and values stored. Router logits that the NPU computed go to ffn.logits(), from row 0.
  // The first `n_done` tokens have been through RunOnNpu.
  void Run(const Rows& rows, size_t n_done = 0);

  // The chunks before the first that has to run on the CPU, from `begin` on the device's clock. May run beside another
  // thread that computes with the pool or reads ffn's dispatch, but touches neither clock nor programs; the layer's
  // program must be loaded.
  struct Done {
    size_t n_tokens = 0;
    Nanos end = 0;
    double copy_seconds = 0;  // modelled: of the CPU
  };
  Done RunOnNpu(const Rows& rows, Nanos begin);

  size_t buffer_bytes() const;

  // Whether the last Run wrote the router logits of this token.
  bool has_logits(size_t token) const { return has_logits_[token]; }

 private:
  bool IsOnNpu(uint32_t layer) const;
  // Of Rows, [first, first + n).
  static Rows Slice(const Rows& rows, size_t first, size_t n);
  // One chunk, `first` tokens after the first of the layer. Its time is added to `done`. With `alone` the pool helps.
  Status RunChunk(const Rows& rows, size_t first, bool alone, Done& done);
  void RunOnCpu(const Rows& rows);
  void FillMask(size_t position, size_t kv_length);
  void FillCache(const KvView& kv, size_t position, size_t kv_length, bool alone);
  void FillInputs(const Rows& rows, size_t kv_length, bool alone);
  bool TakeOutputs(const Rows& rows, size_t first, bool moe);

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
  std::vector<bool> has_logits_;  // [tokens of the last Run or RunOnNpu]
  // fp16 in the order of the graph's inputs (x, cos, sin, mask, k_cache, v_cache) and outputs (delta, k, v, router).
  std::vector<uint16_t> inputs_[6], outputs_[4];
  std::vector<const float*> rows_;    // of the chunk
  std::vector<float*> out_rows_;      // likewise
  std::vector<float> row_k_, row_v_;  // [n_kv_heads * head_dim]
};

}  // namespace npumoe
