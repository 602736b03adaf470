// SPDX-License-Identifier: Apache-2.0
// Outputs of experts back to tokens: weighted sums of rows that a device left as fp16 and the CPU as f32, and of what
// every token has its own row of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace npumoe {

// What the outputs of one expert's slots are, in order of slot: first fp16 rows, then dropped ones, then f32 rows.
struct ExpertOutput {
  uint32_t n_halves = 0;   // slots whose outputs are fp16 rows
  uint32_t n_dropped = 0;  // slots that count for nothing (pruned)
};

struct ScatterJob {
  std::span<const ExpertOutput> experts = {};     // [n_experts], or empty: all f32 rows
  std::span<const uint32_t> expert_begin = {};    // [n_experts + 1] first slot of each, as in Dispatch
  std::span<const uint32_t> slot_of_choice = {};  // [tokens, top_k], as in Dispatch
  std::span<const float> weight_of_choice = {};   // [tokens, top_k]
  size_t top_k = 0;
  const uint16_t* halves = nullptr;          // [slots, dim] fp16; read for slots that n_halves counts
  size_t halves_stride = 0;                  // from one row to the next
  float scale = 1;                           // of what the halves hold
  ConstMatView rows = {};                    // [slots, dim] f32; read for slots that are neither halves nor dropped
  ConstMatView whole = {};                   // [tokens, dim] f32, added after the choices; or empty
  std::span<const float> whole_scales = {};  // [tokens] of it, or empty: 1
};

// Owns scratch: a byte per slot. One thread at a time.
class Scatter {
 public:
  explicit Scatter(ThreadPool& pool) : pool_(pool) {}

  // y[token] += sum over the token's choices, in order of choice, of weight * output, where the output of a half is
  // scale * value; then the token's row of `whole`. All in f32, each product and sum rounded: the same bits on any
  // number of threads and whatever the other tokens are. Allocates only until scratch has grown to the job.
  // y is [tokens, dim].
  void Add(const ScatterJob& job, MatView y);

  // Makes Add free of allocation for jobs of so many slots.
  void Reserve(size_t max_slots) { kinds_.reserve(max_slots); }
  size_t scratch_bytes() const { return kinds_.capacity(); }

 private:
  ThreadPool& pool_;
  std::vector<uint8_t> kinds_;  // [slots] see scatter.cc
};

}  // namespace npumoe
