// SPDX-License-Identifier: Apache-2.0
#include "model/families.h"

#include <algorithm>

namespace npumoe {
namespace {

// Sources: the families' configuration and modelling classes in Hugging Face transformers (defaults, bias flags, norm
// kinds, norm_topk_prob), and llama.cpp's graph of each architecture (what a GGUF file of that name means).
constexpr Family kFamilies[] = {
    {.gguf = "qwen3moe",
     .moe = true,
     .hf_model_type = "qwen3_moe",
     .hf_classes = {"Qwen3MoeForCausalLM"},
     .qk_norm = QkNorm::kPerHead,
     .gguf_renormalize = true,
     .hf_n_experts_key = "num_experts",
     .hf_expert_dim_key = "moe_intermediate_size"},
    {.gguf = "phimoe",
     .moe = true,
     .hf_model_type = "phimoe",
     .hf_classes = {"PhiMoEForCausalLM", "PhimoeForCausalLM"},
     .norm = NormKind::kLayerNorm,
     .norm_bias = true,
     .gguf_all_biases = true,
     .router = RouterRule::kSparseMixer,
     .router_jitter = 0.01f,
     .hf_n_experts_key = "num_local_experts",
     .hf_expert_dim_key = "intermediate_size"},
    {.gguf = "llama",
     .moe = true,
     .hf_model_type = "mixtral",
     .hf_classes = {"MixtralForCausalLM"},
     .gguf_rope_interleaved = true,
     .gguf_rope_theta = 10000,
     .router = RouterRule::kTopKSoftmax,
     .gguf_renormalize = true,
     .hf_renormalize = true,
     .hf_n_experts_key = "num_local_experts",
     .hf_expert_dim_key = "intermediate_size"},
    {.gguf = "llama",
     .moe = false,
     .hf_model_type = "llama",
     .hf_classes = {"LlamaForCausalLM"},
     .gguf_rope_interleaved = true,
     .gguf_rope_theta = 10000,
     .hf_rope_theta = 10000},
    {.gguf = "qwen2moe",
     .moe = true,
     .hf_model_type = "qwen2_moe",
     .hf_classes = {"Qwen2MoeForCausalLM"},
     .qkv_bias = true,
     .shared_expert = true,
     .hf_n_experts_key = "num_experts",
     .hf_expert_dim_key = "moe_intermediate_size"},
    {.gguf = "olmoe",
     .moe = true,
     .hf_model_type = "olmoe",
     .hf_classes = {"OlmoeForCausalLM"},
     .qk_norm = QkNorm::kFullWidth,
     .gguf_rope_theta = 10000,
     .hf_rope_theta = 10000,
     .hf_n_experts_key = "num_experts",
     .hf_expert_dim_key = "intermediate_size"},
    {.gguf = "qwen3",
     .moe = false,
     .hf_model_type = "qwen3",
     .hf_classes = {"Qwen3ForCausalLM"},
     .qk_norm = QkNorm::kPerHead},
    {.gguf = "qwen2", .moe = false, .hf_model_type = "qwen2", .hf_classes = {"Qwen2ForCausalLM"}, .qkv_bias = true},
};

template <typename NameOf>
std::string JoinNames(NameOf name_of) {
  std::string out;
  std::string_view last;
  for (const Family& family : kFamilies) {
    const std::string_view name = name_of(family);
    if (name == last) continue;  // the two rows of one architecture are neighbours
    if (!out.empty()) out += ", ";
    out += name;
    last = name;
  }
  return out;
}

}  // namespace

std::span<const Family> Families() { return kFamilies; }

const Family* FindGgufFamily(std::string_view architecture, bool moe) {
  for (const Family& family : kFamilies) {
    if (family.gguf == architecture && family.moe == moe) return &family;
  }
  return nullptr;
}

const Family* FindHuggingFaceFamily(std::string_view model_type, std::string_view class_name) {
  for (const Family& family : kFamilies) {
    if (!model_type.empty() && family.hf_model_type == model_type) return &family;
  }
  if (class_name.empty()) return nullptr;
  for (const Family& family : kFamilies) {
    if (std::find(family.hf_classes.begin(), family.hf_classes.end(), class_name) != family.hf_classes.end()) {
      return &family;
    }
  }
  return nullptr;
}

std::string KnownGgufFamilies() {
  return JoinNames([](const Family& family) { return family.gguf; });
}

std::string KnownHuggingFaceFamilies() {
  return JoinNames([](const Family& family) { return family.hf_model_type; });
}

}  // namespace npumoe
