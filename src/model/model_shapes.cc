// SPDX-License-Identifier: Apache-2.0
// Named shapes for random checkpoints: published models, with the source of their numbers, and a tiny one per family.
#include <array>
#include <string>

#include "base/check.h"
#include "model/families.h"
#include "model/random_model.h"
#include "model/rope_scaling.h"

namespace npumoe {
namespace {

struct NamedShape {
  std::string_view name, gguf;  // shape and architecture
  uint32_t vocab_size, context_length, dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim;
  double rope_theta;
  float norm_eps;
  uint32_t n_experts, top_k, expert_dim, shared_expert_dim;
  bool renormalize_top_k;  // norm_topk_prob
};

constexpr NamedShape kShapes[] = {
    // config.json of Qwen/Qwen3-30B-A3B.
    {"qwen3-30b-a3b", "qwen3moe", 151936, 40960, 2048, 48, 32, 4, 128, 6144, 1e6, 1e-6f, 128, 8, 768, 0, true},
    // config.json of microsoft/Phi-3.5-MoE-instruct. LongRoPE factors: see AddPhiRope.
    {"phi-3.5-moe", "phimoe", 32064, 131072, 4096, 32, 32, 8, 128, 6400, 1e4, 1e-5f, 16, 2, 6400, 0, false},
    // microsoft/Phi-mini-MoE-instruct and -tiny- (SlimMoE, arXiv 2506.18349). The numbers give exactly the published
    // parameter counts, 7,647,632,704 and 3,755,220,288.
    {"phi-mini-moe", "phimoe", 32064, 4096, 4096, 32, 32, 8, 128, 960, 1e4, 1e-5f, 16, 2, 960, 0, false},
    {"phi-tiny-moe", "phimoe", 32064, 4096, 4096, 32, 16, 4, 128, 448, 1e4, 1e-5f, 16, 2, 448, 0, false},
    // config.json of mistralai/Mixtral-8x7B-v0.1.
    {"mixtral-8x7b", "llama", 32000, 32768, 4096, 32, 32, 8, 128, 14336, 1e6, 1e-5f, 8, 2, 14336, 0, true},
    // config.json of Qwen/Qwen1.5-MoE-A2.7B.
    {"qwen1.5-moe-a2.7b", "qwen2moe", 151936, 8192, 2048, 24, 16, 16, 128, 5632, 1e6, 1e-6f, 60, 4, 1408, 5632, false},
    // config.json of allenai/OLMoE-1B-7B-0924.
    {"olmoe-1b-7b", "olmoe", 50304, 4096, 2048, 16, 16, 16, 128, 1024, 1e4, 1e-5f, 64, 8, 1024, 0, false},
    // Tiny ones: rows of 256 wherever the family allows, so that every block type fits.
    {"tiny-qwen3moe", "qwen3moe", 512, 512, 256, 2, 4, 2, 128, 256, 1e6, 1e-6f, 8, 2, 256, 0, true},
    {"tiny-phimoe", "phimoe", 512, 512, 256, 2, 4, 2, 64, 256, 1e4, 1e-5f, 8, 2, 256, 0, false},
    {"tiny-mixtral", "llama", 512, 512, 256, 2, 4, 2, 64, 256, 1e6, 1e-5f, 8, 2, 256, 0, true},
    {"tiny-qwen2moe", "qwen2moe", 512, 512, 256, 2, 4, 2, 64, 512, 1e6, 1e-6f, 8, 4, 256, 512, false},
    {"tiny-olmoe", "olmoe", 512, 512, 256, 2, 4, 4, 64, 256, 1e4, 1e-5f, 8, 4, 256, 0, false},
    {"tiny-llama", "llama", 512, 512, 256, 2, 4, 2, 64, 512, 1e4, 1e-5f, 0, 0, 0, 0, false},
    {"tiny-qwen3", "qwen3", 512, 512, 256, 2, 4, 2, 128, 512, 1e6, 1e-6f, 0, 0, 0, 0, false},
    {"tiny-qwen2", "qwen2", 512, 512, 256, 2, 4, 2, 64, 512, 1e6, 1e-6f, 0, 0, 0, 0, false},
};

// LongRoPE factors in the manner of Phi-3.5-MoE (short from 1 to 2.8, long from 1.02 to 65, both rising), and its
// mscale. The published lists are tuned numbers that speed and shape do not depend on; these are smooth stand-ins.
void AddPhiRope(ModelConfig& config) {
  const uint32_t n = config.rope_dim / 2;
  for (uint32_t pair = 0; pair < n; ++pair) {
    const float share = static_cast<float>(pair) / static_cast<float>(n);
    config.rope_short_factors.push_back(1.0f + 1.8f * share * share);
    config.rope_long_factors.push_back(1.02f + 64.0f * share * share);
  }
  const bool tiny = config.context_length < 4096;
  config.rope_original_context = tiny ? 256 : 4096;  // 4096: config.json
  // short_mscale and long_mscale of config.json; the tiny one has what the usual formula gives, so that its conversion
  // to GGUF, which holds only that, is the same model.
  const float mscale = tiny ? LongRopeAttentionFactor(config.context_length, 256) : 1.243163121016122f;
  config.rope_short_scale = config.rope_long_scale = mscale;
}

}  // namespace

std::vector<std::string_view> ShapeNames() {
  std::vector<std::string_view> names;
  for (const NamedShape& shape : kShapes) names.push_back(shape.name);
  return names;
}

Result<ModelConfig> ShapeByName(std::string_view name) {
  for (const NamedShape& shape : kShapes) {
    if (shape.name != name) continue;
    const Family* family = FindGgufFamily(shape.gguf, shape.n_experts > 0);
    NM_CHECK(family != nullptr);
    ModelConfig config;
    config.family = shape.gguf;
    config.name = name;
    config.vocab_size = shape.vocab_size;
    config.context_length = shape.context_length;
    config.dim = shape.dim;
    config.n_layers = shape.n_layers;
    config.n_heads = shape.n_heads;
    config.n_kv_heads = shape.n_kv_heads;
    config.head_dim = config.rope_dim = shape.head_dim;
    config.ffn_dim = shape.ffn_dim;
    config.qkv_bias = family->qkv_bias || family->gguf_all_biases;
    config.attn_out_bias = config.output_bias = family->gguf_all_biases;
    config.norm = family->norm;
    config.norm_eps = shape.norm_eps;
    config.qk_norm = family->qk_norm;
    config.rope_theta = shape.rope_theta;
    config.rope_interleaved = family->gguf_rope_interleaved;
    config.n_experts = shape.n_experts;
    config.top_k = shape.top_k;
    config.expert_dim = shape.expert_dim;
    config.shared_expert_dim = shape.shared_expert_dim;
    config.shared_expert_gate = shape.shared_expert_dim > 0;
    if (shape.n_experts > 0) {
      config.router = family->router;
      config.renormalize_top_k = shape.renormalize_top_k;
      config.router_jitter = family->router_jitter;
      config.dense_layer.assign(config.n_layers, false);
    }
    const bool long_rope = family->norm == NormKind::kLayerNorm && shape.context_length != 4096;
    if (long_rope) AddPhiRope(config);
    return config;
  }
  std::string known;
  for (const NamedShape& shape : kShapes) known.append(known.empty() ? "" : ", ").append(shape.name);
  return MakeError(Code::kInvalidArgument, "shape '{}' is not known, wanted one of: {}", name, known);
}

}  // namespace npumoe
