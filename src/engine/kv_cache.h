// SPDX-License-Identifier: Apache-2.0
// Keys and values of every layer for one sequence.
#pragma once

#include <cstddef>

#include "kernels/attention.h"
#include "model/config.h"
#include "npumoe/result.h"

namespace npumoe {

// Address space for the whole context is reserved at once; the system gives a page when a position first fills it.
// One thread at a time.
class KvCache {
 public:
  // dtype: kF16, kF32, or kQ8_0 where the model's head_dim is a multiple of 32 (else kCorruptFile).
  static Result<KvCache> Make(const ModelConfig& config, DType dtype, size_t capacity);
  // Bytes that Make would reserve; kOutOfMemory if the product overflows.
  static Result<size_t> ReservedBytes(const ModelConfig& config, DType dtype, size_t capacity);

  KvCache(KvCache&& other) noexcept;
  KvCache& operator=(KvCache&& other) noexcept;
  ~KvCache();

  KvView Layer(size_t layer) const;
  size_t capacity() const { return view_.capacity; }
  size_t reserved_bytes() const { return bytes_; }

 private:
  KvCache() = default;
  std::byte* data_ = nullptr;  // [n_layers, 2, n_kv_heads, capacity] rows of head_dim
  size_t bytes_ = 0;
  size_t half_layer_bytes_ = 0;  // keys of one layer, or its values
  KvView view_;                  // extents shared by all layers
};

}  // namespace npumoe
