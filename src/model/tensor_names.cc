// SPDX-License-Identifier: Apache-2.0
#include "model/tensor_names.h"

#include <fmt/format.h>

namespace npumoe {
namespace {

using L = LayerWeights;
using M = ModelWeights;
using E = Extent;

// clang-format off
constexpr LayerTensor kLayerTensors[] = {
    // GGUF, Hugging Face, view, rows, cols, small, need
    {{"attn_norm.weight"}, {"input_layernorm.weight"}, &L::attn_norm, E::kNone, E::kDim, true, Need::kAlways},
    {{"attn_norm.bias"}, {"input_layernorm.bias"}, &L::attn_norm_bias, E::kNone, E::kDim, true, Need::kNormBias},
    {{"attn_q.weight"}, {"self_attn.q_proj.weight"}, &L::wq, E::kQ, E::kDim, false, Need::kAlways},
    {{"attn_q.bias"}, {"self_attn.q_proj.bias"}, &L::bq, E::kNone, E::kQ, true, Need::kQkvBias},
    {{"attn_k.weight"}, {"self_attn.k_proj.weight"}, &L::wk, E::kKv, E::kDim, false, Need::kAlways},
    {{"attn_k.bias"}, {"self_attn.k_proj.bias"}, &L::bk, E::kNone, E::kKv, true, Need::kQkvBias},
    {{"attn_v.weight"}, {"self_attn.v_proj.weight"}, &L::wv, E::kKv, E::kDim, false, Need::kAlways},
    {{"attn_v.bias"}, {"self_attn.v_proj.bias"}, &L::bv, E::kNone, E::kKv, true, Need::kQkvBias},
    {{"attn_output.weight"}, {"self_attn.o_proj.weight"}, &L::wo, E::kDim, E::kQ, false, Need::kAlways},
    {{"attn_output.bias"}, {"self_attn.o_proj.bias"}, &L::bo, E::kNone, E::kDim, true, Need::kAttnOutBias},
    {{"attn_q_norm.weight"}, {"self_attn.q_norm.weight"}, &L::q_norm, E::kNone, E::kQNorm, true, Need::kQkNorm},
    {{"attn_k_norm.weight"}, {"self_attn.k_norm.weight"}, &L::k_norm, E::kNone, E::kKNorm, true, Need::kQkNorm},
    {{"ffn_norm.weight"}, {"post_attention_layernorm.weight"}, &L::ffn_norm, E::kNone, E::kDim, true, Need::kAlways},
    {{"ffn_norm.bias"}, {"post_attention_layernorm.bias"}, &L::ffn_norm_bias, E::kNone, E::kDim, true, Need::kNormBias},
    {{"ffn_gate.weight"}, {"mlp.gate_proj.weight"}, &L::w_gate, E::kFfn, E::kDim, false, Need::kDense},
    {{"ffn_up.weight"}, {"mlp.up_proj.weight"}, &L::w_up, E::kFfn, E::kDim, false, Need::kDense},
    {{"ffn_down.weight"}, {"mlp.down_proj.weight"}, &L::w_down, E::kDim, E::kFfn, false, Need::kDense},
    {{"ffn_gate_inp.weight"}, {"mlp.gate.weight", "block_sparse_moe.gate.weight"},
     &L::router, E::kExperts, E::kDim, true, Need::kMoe},
    {{"ffn_gate_inp.bias"}, {"mlp.gate.bias", "block_sparse_moe.gate.bias"},
     &L::router_bias, E::kNone, E::kExperts, true, Need::kOptional},
    {{"ffn_gate_shexp.weight"}, {"mlp.shared_expert.gate_proj.weight"},
     &L::shared_gate, E::kShared, E::kDim, false, Need::kShared},
    {{"ffn_up_shexp.weight"}, {"mlp.shared_expert.up_proj.weight"},
     &L::shared_up, E::kShared, E::kDim, false, Need::kShared},
    {{"ffn_down_shexp.weight"}, {"mlp.shared_expert.down_proj.weight"},
     &L::shared_down, E::kDim, E::kShared, false, Need::kShared},
    {{"ffn_gate_inp_shexp.weight"}, {"mlp.shared_expert_gate.weight"},
     &L::shared_expert_gate, E::kOne, E::kDim, true, Need::kShared},
};

constexpr ModelTensor kModelTensors[] = {
    {"token_embd.weight", "model.embed_tokens.weight", &M::embedding, E::kVocab, E::kDim, false, Need::kAlways},
    {"output_norm.weight", "model.norm.weight", &M::output_norm, E::kNone, E::kDim, true, Need::kAlways},
    {"output_norm.bias", "model.norm.bias", &M::output_norm_bias, E::kNone, E::kDim, true, Need::kNormBias},
    {"output.weight", "lm_head.weight", &M::output, E::kVocab, E::kDim, false, Need::kOutput},
    {"output.bias", "lm_head.bias", &M::output_bias, E::kNone, E::kVocab, true, Need::kOutputBias},
};

constexpr ExpertTensor kExpertTensors[] = {
    {{"ffn_gate_exps.weight"},
     {"mlp.switch_mlp.gate_proj.weight", "block_sparse_moe.switch_mlp.gate_proj.weight"},
     {"ffn_gate.{}.weight"},
     {"mlp.experts.{}.gate_proj.weight", "block_sparse_moe.experts.{}.w1.weight"},
     &L::expert_gate, E::kExpert, E::kDim},
    {{"ffn_up_exps.weight"},
     {"mlp.switch_mlp.up_proj.weight", "block_sparse_moe.switch_mlp.up_proj.weight"},
     {"ffn_up.{}.weight"},
     {"mlp.experts.{}.up_proj.weight", "block_sparse_moe.experts.{}.w3.weight"},
     &L::expert_up, E::kExpert, E::kDim},
    {{"ffn_down_exps.weight"},
     {"mlp.experts.down_proj", "block_sparse_moe.experts.down_proj", "mlp.switch_mlp.down_proj.weight",
      "block_sparse_moe.switch_mlp.down_proj.weight"},
     {"ffn_down.{}.weight"},
     {"mlp.experts.{}.down_proj.weight", "block_sparse_moe.experts.{}.w2.weight"},
     &L::expert_down, E::kDim, E::kExpert},
};
// clang-format on

constexpr NameList kFusedGateUp[] = {{"ffn_gate_up_exps.weight"},
                                     {"mlp.experts.gate_up_proj", "block_sparse_moe.experts.gate_up_proj"}};
constexpr NameList kFusedQkvWeight[] = {{"attn_qkv.weight"}, {"self_attn.qkv_proj.weight"}};
constexpr NameList kFusedQkvBias[] = {{"attn_qkv.bias"}, {"self_attn.qkv_proj.bias"}};

bool RemovePrefix(std::string_view& name, std::string_view prefix) {
  if (name.substr(0, prefix.size()) != prefix) return false;
  name.remove_prefix(prefix.size());
  return true;
}

}  // namespace

size_t ExtentOf(const ModelConfig& config, Extent extent) {
  const size_t q = size_t{config.n_heads} * config.head_dim;
  const size_t kv = size_t{config.n_kv_heads} * config.head_dim;
  const bool full_width = config.qk_norm == QkNorm::kFullWidth;
  switch (extent) {
    case Extent::kNone:
      return 0;
    case Extent::kOne:
      return 1;
    case Extent::kVocab:
      return config.vocab_size;
    case Extent::kDim:
      return config.dim;
    case Extent::kQ:
      return q;
    case Extent::kKv:
      return kv;
    case Extent::kQkv:
      return q + 2 * kv;
    case Extent::kQNorm:
      return full_width ? q : config.head_dim;
    case Extent::kKNorm:
      return full_width ? kv : config.head_dim;
    case Extent::kFfn:
      return config.ffn_dim;
    case Extent::kExperts:
      return config.n_experts;
    case Extent::kExpert:
      return config.expert_dim;
    case Extent::kTwoExperts:
      return 2 * size_t{config.expert_dim};
    case Extent::kShared:
      return config.shared_expert_dim;
  }
  return 0;
}

bool IsNeeded(Need need, const ModelConfig& config, const Family& family, bool moe_layer) {
  switch (need) {
    case Need::kAlways:
      return true;
    case Need::kNormBias:
      return family.norm_bias;
    case Need::kQkNorm:
      return config.qk_norm != QkNorm::kNone;
    case Need::kQkvBias:
      return config.qkv_bias;
    case Need::kAttnOutBias:
      return config.attn_out_bias;
    case Need::kOutputBias:
      return config.output_bias;
    case Need::kOutput:
      return !config.tied_embeddings;
    case Need::kDense:
      return !moe_layer;
    case Need::kMoe:
      return moe_layer;
    case Need::kShared:
      return moe_layer && config.shared_expert_dim > 0;
    case Need::kOptional:
      return false;
  }
  return false;
}

std::span<const LayerTensor> LayerTensors() { return kLayerTensors; }
std::span<const ModelTensor> ModelTensors() { return kModelTensors; }
std::span<const ExpertTensor> ExpertTensors() { return kExpertTensors; }

const NameList& FusedGateUpNames(Naming naming) { return kFusedGateUp[static_cast<size_t>(naming)]; }
const NameList& FusedQkvNames(Naming naming, bool bias) {
  return (bias ? kFusedQkvBias : kFusedQkvWeight)[static_cast<size_t>(naming)];
}

std::string LayerPrefix(Naming naming, uint32_t layer) {
  return naming == Naming::kGguf ? fmt::format("blk.{}.", layer) : fmt::format("model.layers.{}.", layer);
}

std::string CanonicalName(std::string_view name) {
  constexpr std::string_view kModel = "model.";
  RemovePrefix(name, "language_model.");
  if (RemovePrefix(name, "model.language_model.")) return std::string(kModel).append(name);
  for (const std::string_view bare : {"layers.", "embed_tokens.", "norm."}) {
    if (name.substr(0, bare.size()) == bare) return std::string(kModel).append(name);
  }
  return std::string(name);
}

}  // namespace npumoe
