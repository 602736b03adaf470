// SPDX-License-Identifier: Apache-2.0
// One chunk of tokens through all layers.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/attention_block.h"
#include "engine/buffer.h"
#include "engine/choice_log.h"
#include "engine/compute.h"
#include "engine/ffn.h"
#include "engine/kv_cache.h"
#include "engine/npu_layers.h"
#include "engine/trace.h"
#include "model/weights.h"
#include "npumoe/engine.h"

namespace npumoe {

enum class LogitRows { kNone, kLast, kMany };

// Reports to the caller after each layer, counting a chunk's tokens as done layer by layer. A plain struct: a
// std::function made per chunk would allocate.
struct ChunkProgress {
  const ProgressFn* report = nullptr;  // nullptr or empty: nobody listens
  size_t done_tokens = 0;              // before this chunk
  size_t total_tokens = 0;

  // False when the caller wants to stop.
  bool LayerDone(size_t n_tokens, size_t n_layers_done, size_t n_layers) const {
    return report == nullptr || !*report || (*report)(done_tokens + n_tokens * n_layers_done / n_layers, total_tokens);
  }
};

// Owns all activations. One thread at a time; borrows the model.
class Forward {
 public:
  Forward(const Model& model, size_t n_threads, size_t max_chunk_tokens, Activations activations = Activations::k16Bits);

  // Runs tokens at positions first_position... over the cache, which holds everything before. `logits` gets the rows of
  // vocab_size of the last tokens, with kMany as many as it has room for. The last layer's FFN runs only for rows whose
  // logits are wanted, unless an NPU is to run several.
  // Fails with kCancelled, or kUnsupported when activations are not finite. Positions < first_position stay intact.
  // With `npu`, attention and experts run as its plan says; it must have been made from this object's parts.
  Status Run(std::span<const int32_t> tokens, size_t first_position, const KvCache& kv, bool long_rope, LogitRows rows,
             const ChunkProgress& progress, std::span<float> logits, NpuLayers* npu = nullptr);

  // What an NpuLayers works with; valid as long as this object stays where it is.
  Compute& compute() { return compute_; }
  AttentionBlock& attention() { return attention_; }
  Ffn& ffn() { return ffn_; }
  const RopeTable& short_rope() const { return short_rope_; }

  // From now on Run adds the layers' stages in real time to `trace`; nullptr ends it. Borrowed. A run with an NPU is
  // not traced here: its own clock is.
  void Record(Trace* trace) { trace_ = trace; }
  // From now on Run shows `observer` every layer, the last one's FFN for all tokens whatever logits are asked for;
  // `rows` = kNone then costs no vocabulary product. nullptr ends it. Borrowed; not for runs with an NPU.
  void Observe(RoutingObserver* observer);
  // From now on Run shows `choices` which experts the tokens got, with an NPU too, and every layer runs for all tokens;
  // nullptr ends it. Borrowed.
  void Watch(ChoiceLog* choices) { choices_ = choices; }

  size_t scratch_bytes() const;
  size_t max_chunk_tokens() const { return max_chunk_tokens_; }

 private:
  void Embed(std::span<const int32_t> tokens);
  // Tokens of the pass, at `first_position`, from its row `first_row` on.
  struct Part {
    size_t first_row = 0, first_position = 0;
    MatView x, normed;  // [tokens, dim]
  };
  Part PartOf(size_t first_row, size_t n_rows, size_t first_position);
  // body(row) for every row of x. Fails when a value of x is NaN or infinite, naming layer and position.
  template <typename Body>
  Status CheckRows(MatView x, uint32_t layer, size_t first_position, const Body& body);
  // normed = norm(x).
  void NormRows(MatView x, const TensorView& weight, const TensorView& bias, MatView normed);
  void NormOne(MatView x, size_t row, const TensorView& weight, const TensorView& bias, MatView normed) const;
  // Both at once, while a row is in the first-level cache.
  Status CheckAndNormRows(const Part& part, const TensorView& weight, const TensorView& bias, uint32_t layer);
  void AttentionOf(uint32_t layer, const Part& part, const KvCache& kv, NpuLayers* npu);
  // Of a layer of which attention is done. `other` then goes through attention, with an NPU at the same time.
  Status FeedForwardOf(uint32_t layer, const Part& part, NpuLayers* npu, const NpuLayers::AttentionRows* other = nullptr);
  // Layer after layer for all tokens, or for the first `n_first` and the others in turn, half a layer apart.
  Status RunLayers(size_t n_tokens, size_t first_position, const KvCache& kv, size_t n_logit_rows,
                   const ChunkProgress& progress, NpuLayers* npu);
  Status RunHalves(size_t n_tokens, size_t n_first, size_t first_position, const KvCache& kv, size_t n_logit_rows,
                   const ChunkProgress& progress, NpuLayers& npu);
  void WriteLogits(MatView x, std::span<float> logits);
  void SeeChoices(uint32_t layer, size_t first_position, size_t n_tokens, const NpuLayers* npu);
  // Whether the last layer's FFN is to run for the last `n_rows` of the tokens alone.
  bool IsCut(size_t n_rows, size_t n_tokens, const NpuLayers* npu) const;
  void SeeAttention(MatView x);  // after it ran: what it read and made, and the residual it left

  const ModelConfig& config_;
  const ModelWeights& weights_;
  size_t max_chunk_tokens_;
  Compute compute_;
  AttentionBlock attention_;
  Ffn ffn_;
  RopeTable short_rope_, long_rope_;
  RowBuffer x_, normed_;  // [tokens, dim]
  Trace* trace_ = nullptr;
  RoutingObserver* observer_ = nullptr;
  ChoiceLog* choices_ = nullptr;
  std::vector<uint32_t> got_;  // scratch of SeeChoices
};

}  // namespace npumoe
