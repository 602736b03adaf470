// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention over a KV cache, tiled with an online softmax.
#pragma once

#include <cstddef>
#include <memory>

#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace npumoe {

// One layer's cache: keys and values of kv head h at position p start at (h * capacity + p) * row_bytes().
// dtype is kF32, kF16, or kQ8_0: blocks of 32 dimensions with one scale, for a head_dim that blocks fill.
struct KvView {
  DType dtype = DType::kF32;
  std::byte* keys = nullptr;    // [n_kv_heads, capacity, head_dim]
  std::byte* values = nullptr;  // [n_kv_heads, capacity, head_dim]
  size_t n_kv_heads = 0, capacity = 0, head_dim = 0;

  // Of one position of one head.
  size_t row_bytes() const { return head_dim / Info(dtype).block_elems * Info(dtype).block_bytes; }

  // Stores one position's keys and values, rounding to the cache's dtype. [n_kv_heads * head_dim] each.
  // kQ8_0 rounds as QuantizeRow does, but hides no NaN: it makes all 32 elements of its block NaN, and so does an
  // infinity or a magnitude beyond 127 * 65504, for which there is no scale in f16.
  void Store(size_t position, const float* k, const float* v) const;
};

struct AttentionParams {
  size_t n_heads = 0;  // queries; a multiple of n_kv_heads; head h reads kv head h / (n_heads / n_kv_heads)
  float scale = 1.0f;  // usually 1 / sqrt(head_dim)
  size_t window = 0;   // sliding window: position p sees (p - window, p]; 0 = all
};

// Owns per-thread scratch; a call allocates nothing. One thread at a time.
//
// Tiles of keys start at multiples of a fixed number of positions, so that a query's result is the same bits
// whatever chunk it came in and on any number of threads.
class Attention {
 public:
  Attention(ThreadPool& pool, size_t max_head_dim);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  // Query row i stands at position first_position + i; keys and values of positions up to that are stored. Scores of
  // -inf weigh nothing; NaN comes out where it went in, and a NaN or infinity among the values of a chunk may also
  // reach rows of that chunk that stand before it.
  void Run(const AttentionParams& params, ConstMatView q,  // [tokens, n_heads * head_dim]
           const KvView& kv, size_t first_position,
           MatView out);  // [tokens, n_heads * head_dim]

  size_t scratch_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace npumoe
