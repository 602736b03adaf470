// SPDX-License-Identifier: Apache-2.0
// A model's weights as views under our own names, whatever the checkpoint calls them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "tensor/tensor.h"

namespace npumoe {

// Views borrow from the Model that holds them. Empty view = the family has no such tensor. Norms, biases and
// routers are kF32 (converted once at load: they are small); matrices keep the file's dtype, [out, in].
struct LayerWeights {
  TensorView attn_norm, attn_norm_bias;  // [dim]
  TensorView wq, wk, wv, wo;  // [n_heads*head_dim, dim], [n_kv_heads*head_dim, dim] x2, [dim, n_heads*head_dim]
  TensorView bq, bk, bv, bo;  // biases, kF32
  TensorView q_norm, k_norm;  // [head_dim] or full width
  TensorView ffn_norm, ffn_norm_bias;  // [dim]

  // Dense FFN, or empty.
  TensorView w_gate, w_up, w_down;  // [ffn_dim, dim] x2, [dim, ffn_dim]

  // MoE, or empty. One view per expert: merged and per-expert files look the same from here.
  TensorView router;                                            // kF32 [n_experts, dim]
  TensorView router_bias;                                       // kF32 [n_experts] or empty
  std::vector<TensorView> expert_gate, expert_up, expert_down;  // [expert_dim, dim] x2, [dim, expert_dim]
  TensorView shared_gate, shared_up, shared_down;               // shared expert, or empty
  TensorView shared_expert_gate;                                // kF32 [1, dim], sigmoid gate, or empty
};

struct ModelWeights {
  TensorView embedding;    // [vocab_size, dim]
  TensorView output;       // [vocab_size, dim]; equals embedding when tied
  TensorView output_bias;  // kF32 [vocab_size] or empty (PhiMoE has one)
  TensorView output_norm, output_norm_bias;
  std::vector<LayerWeights> layers;
};

struct TensorListing {
  std::string name;  // the file's own
  DType dtype;
  Shape shape;
  size_t size_bytes;
  const std::byte* data;  // [size_bytes], borrowed from the model
};

// An opened checkpoint: mapping, config, weights. Immutable after construction; moves keep the views valid.
class Model {
 public:
  // A .gguf file (any split of a split file) or a Hugging Face folder. Fails with one line on anything missing,
  // misshapen or unknown; unused tensors are listed in config().warnings.
  static Result<Model> Open(const std::string& path, const ConfigOptions& options);

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const ModelConfig& config() const;
  const ModelWeights& weights() const;
  const GgufFile* gguf() const;  // nullptr for a Hugging Face folder
  const std::string& path() const;
  std::vector<TensorListing> Tensors() const;  // in name order
  size_t mapped_bytes() const;                 // file bytes mapped
  size_t converted_bytes() const;              // small tensors converted to f32 at load

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace npumoe
