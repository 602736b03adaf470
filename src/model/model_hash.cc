// SPDX-License-Identifier: Apache-2.0
#include "model/model_hash.h"

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "graph/hash.h"

namespace npumoe {
namespace {

constexpr std::string_view kVersion = "npumoe model 1";  // a change of what is hashed changes it
constexpr size_t kSmallBytes = size_t{16} << 10;         // norms and biases of dim 4,096 are read whole
constexpr size_t kSampleBytes = 64;                      // a cache line
// Samples of all large tensors together, and at most of one: each costs a page fault, tens of microseconds from disk.
constexpr size_t kSamplesInAll = 8192, kMaxSamples = 64;

void AddReal(ContentHash& hash, double value) { hash.Add(std::bit_cast<uint64_t>(value)); }

void AddReals(ContentHash& hash, const std::vector<float>& values) {
  hash.Add(uint64_t{values.size()});
  for (const float value : values) AddReal(hash, value);
}

void AddConfig(ContentHash& hash, const ModelConfig& config) {
  hash.Add(config.family);
  for (const uint64_t value : {uint64_t{config.vocab_size},
                               uint64_t{config.context_length},
                               uint64_t{config.dim},
                               uint64_t{config.n_layers},
                               uint64_t{config.n_heads},
                               uint64_t{config.n_kv_heads},
                               uint64_t{config.head_dim},
                               uint64_t{config.ffn_dim},
                               uint64_t{config.tied_embeddings},
                               uint64_t{config.qkv_bias},
                               uint64_t{config.attn_out_bias},
                               uint64_t{config.output_bias},
                               static_cast<uint64_t>(config.norm),
                               static_cast<uint64_t>(config.qk_norm),
                               uint64_t{config.sliding_window},
                               uint64_t{config.rope_dim},
                               uint64_t{config.rope_interleaved},
                               uint64_t{config.rope_long_by_context},
                               uint64_t{config.rope_original_context},
                               uint64_t{config.n_experts},
                               uint64_t{config.top_k},
                               uint64_t{config.expert_dim},
                               uint64_t{config.shared_expert_dim},
                               uint64_t{config.shared_expert_gate},
                               static_cast<uint64_t>(config.router),
                               uint64_t{config.renormalize_top_k}}) {
    hash.Add(value);
  }
  for (const double value : {double{config.norm_eps}, config.rope_theta, double{config.rope_short_scale},
                             double{config.rope_long_scale}, double{config.router_jitter}}) {
    AddReal(hash, value);
  }
  AddReals(hash, config.rope_short_factors);
  AddReals(hash, config.rope_long_factors);
  hash.Add(uint64_t{config.dense_layer.size()});
  for (const bool dense : config.dense_layer) hash.Add(uint64_t{dense});
}

void AddTensor(ContentHash& hash, const TensorListing& tensor, size_t n_samples) {
  hash.Add(tensor.name);
  hash.Add(Info(tensor.dtype).name);
  hash.Add(uint64_t{tensor.shape.rank});
  for (size_t i = 0; i < tensor.shape.rank; ++i) hash.Add(uint64_t{tensor.shape[i]});
  const std::span<const std::byte> bytes(tensor.data, tensor.size_bytes);
  if (bytes.size() <= kSmallBytes) {
    hash.Add(bytes);
    return;
  }
  // The first at 0, the last at the very end, the others evenly between: n - 1 equal steps (one sample: the middle).
  const size_t last = bytes.size() - kSampleBytes;
  for (size_t i = 0; i < n_samples; ++i) {
    const size_t at =
        n_samples == 1 ? last / 2 : last / (n_samples - 1) * i + last % (n_samples - 1) * i / (n_samples - 1);
    hash.Add(bytes.subspan(at, kSampleBytes));
  }
}

}  // namespace

std::string ModelHash(const Model& model) {
  ContentHash hash;
  hash.Add(kVersion);
  AddConfig(hash, model.config());
  const std::vector<TensorListing> tensors = model.Tensors();
  const auto n_large = static_cast<size_t>(std::count_if(
      tensors.begin(), tensors.end(), [](const TensorListing& tensor) { return tensor.size_bytes > kSmallBytes; }));
  const size_t n_samples = std::clamp<size_t>(kSamplesInAll / std::max<size_t>(n_large, 1), 1, kMaxSamples);
  hash.Add(uint64_t{tensors.size()});
  for (const TensorListing& tensor : tensors) AddTensor(hash, tensor, n_samples);
  return hash.Hex();
}

}  // namespace npumoe
