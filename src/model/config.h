// SPDX-License-Identifier: Apache-2.0
// ModelConfig: everything that distinguishes one model family from another, as data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

class GgufFile;

enum class NormKind { kRms, kLayerNorm };
// Which vectors q/k norm covers: none, each head, or the full projected width before the head split (OLMoE).
enum class QkNorm { kNone, kPerHead, kFullWidth };
enum class RouterRule {
  kSoftmaxTopK,  // softmax over all experts, take top_k, renormalise if renormalize_top_k
  kTopKSoftmax,  // take top_k logits, softmax over those (Mixtral; llama.cpp's reading of PhiMoE)
  kSparseMixer,  // PhiMoE: each winner's weight is a softmax over gates within 2*jitter of it; sum is not 1
};

// Caps on numbers read from files; beyond them a file is refused (kUnsupported), not trusted.
inline constexpr uint32_t kMaxLayers = 1024;
inline constexpr uint32_t kMaxExperts = 4096;
inline constexpr uint32_t kMaxTotalExperts = 1u << 18;  // of all layers; a view is larger than the tiniest expert
inline constexpr uint32_t kMaxDim = 1u << 20;
inline constexpr uint32_t kMaxHeads = 4096;
inline constexpr uint32_t kMaxVocab = 1u << 22;
inline constexpr uint32_t kMaxContext = 1u << 24;

struct ModelConfig {
  std::string family;  // GGUF architecture name: "qwen3moe", "phimoe", "llama", "qwen2moe", "olmoe", "qwen3"
  std::string name;    // general.name or the folder's name

  uint32_t vocab_size = 0;
  uint32_t context_length = 0;  // trained
  uint32_t dim = 0;
  uint32_t n_layers = 0;
  uint32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;  // head_dim is independent of dim / n_heads
  uint32_t ffn_dim = 0;                                // dense layers
  bool tied_embeddings = false;
  // Biases that the checkpoint must have (others are taken when all layers have them): of the q, k and v projections,
  // of the attention's output projection, of the final logits.
  bool qkv_bias = false, attn_out_bias = false, output_bias = false;

  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-5f;
  QkNorm qk_norm = QkNorm::kNone;
  uint32_t sliding_window = 0;  // 0 = none

  // Rope.
  double rope_theta = 0;
  uint32_t rope_dim = 0;          // rotated values per head
  bool rope_interleaved = false;  // of the weights as stored
  std::vector<float> rope_short_factors,
      rope_long_factors;  // [rope_dim / 2] or empty (LongRoPE); Llama-3 "rope_freqs" are stored in both
  float rope_short_scale = 1.0f, rope_long_scale = 1.0f;  // mscale
  bool rope_long_by_context = false;   // llama.cpp's choice: long factors when the context is larger, not the sequence
  uint32_t rope_original_context = 0;  // long factors above this length; 0 = never

  // Mixture of experts; n_experts == 0 means a dense model.
  uint32_t n_experts = 0, top_k = 0, expert_dim = 0;
  uint32_t shared_expert_dim = 0;   // 0 = no shared expert
  bool shared_expert_gate = false;  // sigmoid gate on the shared expert
  RouterRule router = RouterRule::kSoftmaxTopK;
  bool renormalize_top_k = false;
  float router_jitter = 0.0f;     // kSparseMixer
  std::vector<bool> dense_layer;  // [n_layers] true where a MoE model has a dense FFN

  std::vector<int32_t> eos_ids;       // every end-of-generation id that config files name
  std::vector<std::string> warnings;  // choices made because the file is silent

  bool IsMoeLayer(uint32_t layer) const { return n_experts > 0 && !dense_layer[layer]; }
};

struct ConfigOptions {
  // llama.cpp's reading of PhiMoE: softmax over the two winners and RMS norm (with bias).
  bool phimoe_llama_cpp = false;
};

Result<ModelConfig> ConfigFromGguf(const GgufFile& file, const ConfigOptions& options);
// `config_json` and optional `generation_config_json` are contents of the files; `name` is the errors' subject.
Result<ModelConfig> ConfigFromHuggingFace(std::string_view config_json, std::string_view generation_config_json,
                                          std::string_view name, const ConfigOptions& options);

// All hyper-parameters > 0, divisible and within the caps. Both makers call it.
Status Validate(const ModelConfig& config, std::string_view name);

}  // namespace npumoe
