// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint_metadata.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "model/rope_scaling.h"

namespace npumoe {
namespace {

// Token types of tokenizer.ggml.token_type (llama.cpp's llama_token_type).
constexpr int32_t kNormalToken = 1, kControlToken = 3;

void SetVocabulary(const RandomVocab& vocab, GgufWriter& writer) {
  std::vector<int32_t> types(vocab.tokens.size());
  for (size_t id = 0; id < types.size(); ++id) types[id] = vocab.IsControl(id) ? kControlToken : kNormalToken;
  writer.SetString("tokenizer.ggml.model", "gpt2");
  writer.SetString("tokenizer.ggml.pre", "qwen2");
  writer.SetStrings("tokenizer.ggml.tokens", vocab.tokens);
  writer.SetInts("tokenizer.ggml.token_type", types);
  writer.SetStrings("tokenizer.ggml.merges", vocab.merges);
  writer.SetUint("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(vocab.turn_end));
  writer.SetUint("tokenizer.ggml.padding_token_id", static_cast<uint32_t>(vocab.end_of_text));
  writer.SetUint("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(vocab.end_of_text));
  writer.SetBool("tokenizer.ggml.add_bos_token", false);
  writer.SetString("tokenizer.chat_template", RandomChatTemplate());
}

// Families whose config.json has one width for both: their GGUF files have it under feed_forward_length.
bool SharesExpertWidth(const Family& family) { return family.hf_expert_dim_key == "intermediate_size"; }

bool HasDenseLayer(const ModelConfig& config) {
  return std::find(config.dense_layer.begin(), config.dense_layer.end(), true) != config.dense_layer.end();
}

}  // namespace

void SetGgufMetadata(const RandomModelSpec& spec, const Family& family, const RandomVocab& vocab, GgufWriter& writer) {
  const ModelConfig& config = spec.config;
  const auto key = [&](std::string_view suffix) { return fmt::format("{}.{}", config.family, suffix); };
  writer.SetString("general.architecture", config.family);
  // Spaces for dashes: to llama.cpp a name with "phi-3" in it promises the special tokens of that model's tokenizer.
  std::string name = config.name;
  std::replace(name.begin(), name.end(), '-', ' ');
  writer.SetString("general.name", fmt::format("{} random seed {}", name, spec.seed));
  writer.SetUint("general.quantization_version", 2);  // of the block layouts; 2 since 2023
  writer.SetUint(key("context_length"), config.context_length);
  writer.SetUint(key("embedding_length"), config.dim);
  writer.SetUint(key("block_count"), config.n_layers);
  writer.SetUint(key("vocab_size"), config.vocab_size);
  const bool expert_width = config.n_experts > 0 && !HasDenseLayer(config) && SharesExpertWidth(family);
  writer.SetUint(key("feed_forward_length"), expert_width || config.ffn_dim == 0 ? config.expert_dim : config.ffn_dim);
  writer.SetUint(key("attention.head_count"), config.n_heads);
  writer.SetUint(key("attention.head_count_kv"), config.n_kv_heads);
  writer.SetUint(key("attention.key_length"), config.head_dim);
  writer.SetUint(key("attention.value_length"), config.head_dim);
  writer.SetFloat(key("attention.layer_norm_rms_epsilon"), config.norm_eps);
  if (config.norm == NormKind::kLayerNorm) writer.SetFloat(key("attention.layer_norm_epsilon"), config.norm_eps);
  if (config.sliding_window > 0) writer.SetUint(key("attention.sliding_window"), config.sliding_window);
  writer.SetUint(key("rope.dimension_count"), config.rope_dim);
  writer.SetFloat(key("rope.freq_base"), static_cast<float>(config.rope_theta));
  if (config.rope_original_context > 0) {
    // What llama.cpp's converter writes; the checkpoint's own scales go under keys of ours.
    writer.SetFloat(key("rope.scaling.attn_factor"),
                    LongRopeAttentionFactor(config.context_length, config.rope_original_context));
    writer.SetUint(key("rope.scaling.original_context_length"), config.rope_original_context);
    writer.SetFloat(key("npumoe.short_mscale"), config.rope_short_scale);
    writer.SetFloat(key("npumoe.long_mscale"), config.rope_long_scale);
  } else if (config.rope_short_scale != 1.0f) {
    writer.SetFloat(key("rope.scaling.attn_factor"), config.rope_short_scale);
  }
  if (config.n_experts > 0) {
    writer.SetUint(key("expert_count"), config.n_experts);
    writer.SetUint(key("expert_used_count"), config.top_k);
    writer.SetUint(key("expert_feed_forward_length"), config.expert_dim);
    writer.SetUint(key("expert_gating_func"), 1);  // softmax; the architecture's name says the rest
    if (config.shared_expert_dim > 0) {
      writer.SetUint(key("expert_shared_feed_forward_length"), config.shared_expert_dim);
    }
    if (config.renormalize_top_k != family.gguf_renormalize) {
      writer.SetBool(key("expert_weights_norm"), config.renormalize_top_k);
    }
    if (config.router == RouterRule::kSparseMixer) {
      writer.SetFloat(key("npumoe.router_jitter_noise"), config.router_jitter);
    }
  }
  SetVocabulary(vocab, writer);
}

Result<std::string> HuggingFaceConfigJson(const RandomModelSpec& spec, const Family& family, const RandomVocab& vocab) {
  const ModelConfig& config = spec.config;
  nlohmann::ordered_json json;
  json["architectures"] = {family.hf_classes[0]};
  json["model_type"] = family.hf_model_type;
  json["vocab_size"] = config.vocab_size;
  json["max_position_embeddings"] = config.context_length;
  json["hidden_size"] = config.dim;
  json["num_hidden_layers"] = config.n_layers;
  json["num_attention_heads"] = config.n_heads;
  json["num_key_value_heads"] = config.n_kv_heads;
  json["head_dim"] = config.head_dim;
  json["intermediate_size"] = config.ffn_dim;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = config.norm_eps;
  json["rope_theta"] = config.rope_theta;
  json["tie_word_embeddings"] = config.tied_embeddings;
  json["attention_bias"] = config.attn_out_bias;
  if (config.output_bias) json["lm_head_bias"] = true;
  if (config.sliding_window > 0) json["sliding_window"] = config.sliding_window;
  if (config.rope_original_context > 0) {
    json["rope_scaling"] = {{"type", "longrope"},
                            {"short_factor", config.rope_short_factors},
                            {"long_factor", config.rope_long_factors},
                            {"short_mscale", config.rope_short_scale},
                            {"long_mscale", config.rope_long_scale},
                            {"original_max_position_embeddings", config.rope_original_context}};
    json["original_max_position_embeddings"] = config.rope_original_context;
  } else if (!config.rope_short_factors.empty()) {
    return MakeError(Code::kUnsupported,
                     "random model: rope factors without an original context cannot be written to config.json");
  }
  if (config.n_experts > 0) {
    json[std::string(family.hf_n_experts_key)] = config.n_experts;
    json["num_experts_per_tok"] = config.top_k;
    json[std::string(family.hf_expert_dim_key)] = config.expert_dim;
    json["norm_topk_prob"] = config.renormalize_top_k;
    if (config.router == RouterRule::kSparseMixer) json["router_jitter_noise"] = config.router_jitter;
    if (config.shared_expert_dim > 0) json["shared_expert_intermediate_size"] = config.shared_expert_dim;
    std::vector<uint32_t> dense;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
      if (config.dense_layer[layer]) dense.push_back(layer);
    }
    json["mlp_only_layers"] = dense;
    if (!dense.empty() && SharesExpertWidth(family) && config.ffn_dim != config.expert_dim) {
      return MakeError(Code::kUnsupported, "random model: dense width {} beside expert width {}, wanted equal for '{}'",
                       config.ffn_dim, config.expert_dim, family.hf_model_type);
    }
  }
  json["eos_token_id"] = vocab.turn_end;
  json["pad_token_id"] = vocab.end_of_text;
  const DType dtype = spec.matrix_dtype;
  json["torch_dtype"] = dtype == DType::kF32 ? "float32" : dtype == DType::kF16 ? "float16" : "bfloat16";
  return json.dump(2);
}

std::string GenerationConfigJson(const RandomVocab& vocab) {
  const nlohmann::ordered_json json = {{"eos_token_id", {vocab.turn_end, vocab.end_of_text}},
                                       {"pad_token_id", vocab.end_of_text}};
  return json.dump(2);
}

}  // namespace npumoe
