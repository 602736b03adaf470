// SPDX-License-Identifier: Apache-2.0
// Outputs of experts back to tokens, straight from the fp16 columns that a device wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace npumoe {

// Where the outputs of one expert's slots are, in order of slot: first columns, then dropped ones, then f32 rows.
struct ExpertOutput {
  const uint16_t* columns = nullptr;  // [channels, width] fp16; may be null when n_columns is 0
  uint32_t width = 0;
  uint32_t n_columns = 0;  // slots whose outputs are columns, at most width
  uint32_t n_dropped = 0;  // slots that count for nothing (pruned)
};

struct ScatterJob {
  std::span<const ExpertOutput> experts;     // [n_experts]
  std::span<const uint32_t> expert_begin;    // [n_experts + 1] first slot of each, as in Dispatch
  std::span<const uint32_t> slot_of_choice;  // [tokens, top_k], as in Dispatch
  std::span<const float> weight_of_choice;   // [tokens, top_k]
  size_t top_k = 0;
  float scale = 1;    // of what the columns hold
  ConstMatView rows;  // [slots, dim] f32 outputs; only slots that are neither columns nor dropped are read
};

// Owns scratch: 32 bytes per slot and thread, 5 per choice. One thread at a time.
class Scatter {
 public:
  explicit Scatter(ThreadPool& pool) : pool_(pool) {}

  // y[token] += sum over the token's choices, in order of choice, of weight * output, where a column's output is
  // scale * value. All in f32, each product and sum rounded: the same bits as UnpackColumns and ScatterAdd give, on
  // any number of threads and whatever the other tokens are. Allocates only until scratch has grown to the job.
  // y is [tokens, dim].
  void Add(const ScatterJob& job, MatView y);

  size_t scratch_bytes() const;

 private:
  ThreadPool& pool_;
  std::vector<uint32_t> sources_;  // [tokens, top_k] see scatter.cc
  std::vector<uint8_t> kinds_;     // [slots]
  std::vector<uint16_t> stages_;   // [threads, slots + a tile, channels of a block]
};

}  // namespace npumoe
