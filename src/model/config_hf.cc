// SPDX-License-Identifier: Apache-2.0
// ModelConfig from a Hugging Face config.json. Defaults of absent fields: the transformers config class of the family.
#include "model/config_hf.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "format/printable.h"
#include "model/families.h"
#include "model/json_fields.h"
#include "model/rope_scaling.h"

namespace npumoe {
namespace {

constexpr size_t kMaxEndTokens = 64;  // published lists have up to three

Result<const Family*> ChooseFamily(const JsonFields& fields) {
  NM_TRY_VAR(const std::string model_type, fields.String("model_type", ""));
  std::string class_name;
  const nlohmann::json* classes = fields.Find("architectures");
  if (classes != nullptr && classes->is_array() && !classes->empty() && classes->front().is_string()) {
    class_name = classes->front().get<std::string>();
  }
  if (const Family* family = FindHuggingFaceFamily(model_type, class_name)) return family;
  if (model_type.empty() && class_name.empty()) {
    return MakeError(Code::kCorruptFile, "{}: missing", fields.Where("model_type"));
  }
  return MakeError(Code::kUnsupported, "{}: '{}' is not supported, wanted one of: {}", fields.Where("model_type"),
                   Printable(model_type.empty() ? class_name : model_type), KnownHuggingFaceFamilies());
}

// Fields that change the arithmetic in ways these families do not have.
Status RefuseOtherArithmetic(const JsonFields& fields) {
  if (fields.Has("quantization_config")) {
    NM_TRY_VAR(const JsonFields quantization, fields.Object("quantization_config"));
    NM_TRY_VAR(const std::string method, quantization.String("quant_method", "unnamed"));
    return MakeError(Code::kUnsupported, "{}: '{}', wanted an unquantised checkpoint (F32, F16, BF16) or a GGUF file",
                     fields.Where("quantization_config.quant_method"), Printable(method));
  }
  NM_TRY_VAR(const std::string activation, fields.String("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") {
    return MakeError(Code::kUnsupported, "{}: '{}', wanted 'silu'", fields.Where("hidden_act"), Printable(activation));
  }
  NM_TRY_VAR(const bool mlp_bias, fields.Bool("mlp_bias", false));
  if (mlp_bias) return MakeError(Code::kUnsupported, "{}: true, wanted false", fields.Where("mlp_bias"));
  NM_TRY_VAR(const double clip, fields.Float("clip_qkv", 0));
  if (clip != 0) return MakeError(Code::kUnsupported, "{}: {}, wanted null", fields.Where("clip_qkv"), clip);
  return Ok{};
}

Status ReadShape(const JsonFields& fields, const HuggingFaceHints& hints, ModelConfig& config) {
  NM_TRY_VAR(config.vocab_size, fields.Uint("vocab_size", kMaxVocab));
  NM_TRY_VAR(config.context_length, fields.Uint("max_position_embeddings", kMaxContext));
  NM_TRY_VAR(config.dim, fields.Uint("hidden_size", kMaxDim));
  NM_TRY_VAR(config.n_layers, fields.Uint("num_hidden_layers", kMaxLayers));
  NM_TRY_VAR(config.n_heads, fields.Uint("num_attention_heads", kMaxHeads));
  NM_TRY_VAR(config.n_kv_heads, fields.Uint("num_key_value_heads", kMaxHeads, config.n_heads));
  NM_TRY_VAR(config.ffn_dim, fields.Uint("intermediate_size", kMaxDim, 0));
  if (config.n_heads == 0) {
    return MakeError(Code::kCorruptFile, "{}: 0, wanted at least 1", fields.Where("num_attention_heads"));
  }
  // Pruned models have heads that are not dim / n_heads wide; not all of them say so in the config.
  const size_t width = hints.q_rows > 0 && hints.q_rows % config.n_heads == 0 ? hints.q_rows : config.dim;
  const auto fallback = static_cast<uint32_t>(std::min<size_t>(width / config.n_heads, kMaxDim));
  NM_TRY_VAR(config.head_dim, fields.Uint("head_dim", kMaxDim, fallback));
  NM_TRY_VAR(const double eps, fields.Float("rms_norm_eps", 1e-6));
  config.norm_eps = static_cast<float>(eps);
  return Ok{};
}

// Attention windows. One window for all layers is supported; a mix is not.
Status ReadSlidingWindow(const JsonFields& fields, ModelConfig& config) {
  NM_TRY_VAR(const uint32_t window, fields.Uint("sliding_window", UINT32_MAX, 0));
  // Hugging Face: the Qwen families have the switch, off unless the file says otherwise; Mixtral and PhiMoE have none.
  const bool has_switch = config.family.starts_with("qwen");
  NM_TRY_VAR(const bool enabled, fields.Bool("use_sliding_window", !has_switch));
  if (window == 0 || !enabled) return Ok{};
  uint32_t n_windowed = config.n_layers;
  if (fields.Has("use_sliding_window")) {  // Qwen: layers from max_window_layers on have the window
    NM_TRY_VAR(const uint32_t n_full, fields.Uint("max_window_layers", UINT32_MAX, 0));
    n_windowed = config.n_layers - std::min(n_full, config.n_layers);
  }
  if (n_windowed == 0) return Ok{};
  if (n_windowed < config.n_layers && window < config.context_length) {
    return MakeError(Code::kUnsupported, "{}: a window of {} tokens in {} of {} layers, wanted all layers or none",
                     fields.Where("sliding_window"), window, n_windowed, config.n_layers);
  }
  if (n_windowed == config.n_layers) config.sliding_window = window;
  return Ok{};
}

Status ReadYarn(const JsonFields& scaling, uint32_t original_context, ModelConfig& config) {
  YarnScaling yarn{.original_context = original_context};
  NM_TRY_VAR(yarn.factor, scaling.Float("factor"));
  NM_TRY_VAR(yarn.beta_fast, scaling.Float("beta_fast", yarn.beta_fast));
  NM_TRY_VAR(yarn.beta_slow, scaling.Float("beta_slow", yarn.beta_slow));
  NM_TRY_VAR(yarn.truncate, scaling.Bool("truncate", true));
  if (yarn.factor <= 0 || yarn.beta_fast <= 0 || yarn.beta_slow <= 0 || original_context == 0) {
    return MakeError(Code::kCorruptFile, "{}: yarn with factor {}, beta_fast {}, beta_slow {}, wanted above 0",
                     scaling.Where("factor"), yarn.factor, yarn.beta_fast, yarn.beta_slow);
  }
  if (scaling.Has("mscale") || scaling.Has("mscale_all_dim")) {
    return MakeError(Code::kUnsupported, "{}: not supported for yarn, wanted attention_factor or nothing",
                     scaling.Where("mscale"));
  }
  NM_TRY_VAR(const double scale, scaling.Float("attention_factor", YarnAttentionFactor(yarn.factor)));
  SetRopeFactors(config, YarnFactors(config.rope_dim, config.rope_theta, yarn), static_cast<float>(scale));
  return Ok{};
}

Status ReadLlama3(const JsonFields& scaling, uint32_t original_context, ModelConfig& config) {
  Llama3Scaling llama3{.original_context = original_context};
  NM_TRY_VAR(llama3.factor, scaling.Float("factor"));
  NM_TRY_VAR(llama3.low_freq_factor, scaling.Float("low_freq_factor"));
  NM_TRY_VAR(llama3.high_freq_factor, scaling.Float("high_freq_factor"));
  if (llama3.factor <= 0 || llama3.low_freq_factor <= 0 || llama3.high_freq_factor <= llama3.low_freq_factor) {
    return MakeError(
        Code::kCorruptFile,
        "{}: llama3 with factor {}, low_freq_factor {}, high_freq_factor {}, wanted above 0 and low < high",
        scaling.Where("factor"), llama3.factor, llama3.low_freq_factor, llama3.high_freq_factor);
  }
  SetRopeFactors(config, Llama3Factors(config.rope_dim, config.rope_theta, llama3), 1.0f);
  return Ok{};
}

// LongRoPE: factors and scale by the length reached.
Status ReadLongRope(const JsonFields& scaling, uint32_t original_context, ModelConfig& config) {
  NM_TRY_VAR(config.rope_short_factors, scaling.Floats("short_factor", kMaxDim));
  NM_TRY_VAR(config.rope_long_factors, scaling.Floats("long_factor", kMaxDim));
  for (const auto& [key, factors] :
       {std::pair{"short_factor", &config.rope_short_factors}, std::pair{"long_factor", &config.rope_long_factors}}) {
    if (factors->size() != config.rope_dim / 2) {
      return MakeError(Code::kCorruptFile, "{}: {} numbers, wanted {} (half of the rope dimension)", scaling.Where(key),
                       factors->size(), config.rope_dim / 2);
    }
  }
  config.rope_original_context = original_context;
  const float formula = LongRopeAttentionFactor(config.context_length, original_context);
  NM_TRY_VAR(const double common, scaling.Float("attention_factor", formula));
  NM_TRY_VAR(const double short_scale, scaling.Float("short_mscale", common));
  NM_TRY_VAR(const double long_scale, scaling.Float("long_mscale", common));
  config.rope_short_scale = static_cast<float>(short_scale);
  config.rope_long_scale = static_cast<float>(long_scale);
  return Ok{};
}

Status ReadScaling(const JsonFields& fields, const JsonFields& scaling, ModelConfig& config) {
  // Older files say "type", newer ones "rope_type"; some have both, and then rope_type counts.
  NM_TRY_VAR(const std::string old_type, scaling.String("type", "default"));
  NM_TRY_VAR(const std::string type, scaling.String("rope_type", old_type));
  NM_TRY_VAR(uint32_t original_context,
             fields.Uint("original_max_position_embeddings", kMaxContext, config.context_length));
  NM_TRY_VAR(original_context, scaling.Uint("original_max_position_embeddings", kMaxContext, original_context));
  if (type == "default") return Ok{};
  if (type == "linear") {
    NM_TRY_VAR(const double factor, scaling.Float("factor"));
    ApplyLinearScaling(config, factor);
    return Ok{};
  }
  if (type == "llama3") return ReadLlama3(scaling, original_context, config);
  if (type == "longrope" || type == "su") return ReadLongRope(scaling, original_context, config);
  if (type == "yarn") return ReadYarn(scaling, original_context, config);
  return MakeError(Code::kUnsupported, "{}: '{}', wanted one of: default, linear, llama3, longrope, yarn",
                   scaling.Where("rope_type"), Printable(type));
}

Status ReadRope(const JsonFields& fields, const Family& family, ModelConfig& config) {
  // transformers 5 keeps theta and scaling together in rope_parameters; before, they were rope_theta and rope_scaling.
  const std::string_view group = fields.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const nlohmann::json none = nlohmann::json::object();
  JsonFields scaling(none, "", "");
  if (fields.Has(group)) {
    NM_TRY_VAR(scaling, fields.Object(group));
  }
  NM_TRY_VAR(const double top_theta, fields.Float("rope_theta", 0));
  NM_TRY_VAR(config.rope_theta, scaling.Float("rope_theta", top_theta));
  if (config.rope_theta == 0) {
    if (family.hf_rope_theta == 0) {
      return MakeError(Code::kCorruptFile,
                       "{}: missing, and so is rope_parameters.rope_theta: model type '{}' needs one",
                       fields.Where("rope_theta"), family.hf_model_type);
    }
    config.rope_theta = family.hf_rope_theta;
    config.warnings.push_back(fmt::format("rope_theta is absent: using {}", family.hf_rope_theta));
  }
  NM_TRY_VAR(const double top_share, fields.Float("partial_rotary_factor", 1));
  NM_TRY_VAR(const double share, scaling.Float("partial_rotary_factor", top_share));
  if (share <= 0 || share > 1) {
    return MakeError(Code::kCorruptFile, "{}: {}, wanted above 0 and at most 1", fields.Where("partial_rotary_factor"),
                     share);
  }
  config.rope_dim = static_cast<uint32_t>(config.head_dim * share);
  NM_TRY(Validate(config, fields.name()));  // the rules below divide by these numbers
  return ReadScaling(fields, scaling, config);
}

Status ReadDenseLayers(const JsonFields& fields, ModelConfig& config) {
  // Layer i has experts when (i + 1) is a multiple of decoder_sparse_step and it is not listed as dense.
  NM_TRY_VAR(const uint32_t step, fields.Uint("decoder_sparse_step", UINT32_MAX, 1));
  if (step == 0) return MakeError(Code::kCorruptFile, "{}: 0, wanted at least 1", fields.Where("decoder_sparse_step"));
  NM_TRY_VAR(const uint32_t n_first_dense, fields.Uint("first_k_dense_replace", kMaxLayers, 0));
  NM_TRY_VAR(const std::vector<uint32_t> listed, fields.Uints("mlp_only_layers", kMaxLayers, UINT32_MAX));
  config.dense_layer.assign(config.n_layers, false);
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    config.dense_layer[layer] = (layer + 1) % step != 0 || layer < n_first_dense;
  }
  for (const uint32_t layer : listed) {
    if (layer < config.n_layers) config.dense_layer[layer] = true;
  }
  return Ok{};
}

Status ReadExperts(const JsonFields& fields, const Family& family, ModelConfig& config) {
  const std::string_view n_key = fields.Has(family.hf_n_experts_key) ? family.hf_n_experts_key
                                 : fields.Has("num_experts")         ? std::string_view("num_experts")
                                                                     : std::string_view("num_local_experts");
  NM_TRY_VAR(config.n_experts, fields.Uint(n_key, kMaxExperts));
  if (config.n_experts == 0) {
    return MakeError(Code::kCorruptFile, "{}: 0, wanted at least 1", fields.Where(n_key));
  }
  NM_TRY_VAR(config.top_k, fields.Uint("num_experts_per_tok", kMaxExperts));
  NM_TRY_VAR(config.expert_dim, fields.Uint(family.hf_expert_dim_key, kMaxDim));
  NM_TRY(ReadDenseLayers(fields, config));
  config.router = family.router;
  NM_TRY_VAR(config.renormalize_top_k, fields.Bool("norm_topk_prob", family.hf_renormalize));
  if (config.router == RouterRule::kSparseMixer) {
    NM_TRY_VAR(const double jitter, fields.Float("router_jitter_noise", family.router_jitter));
    config.router_jitter = static_cast<float>(jitter);
  }
  if (family.shared_expert) {
    NM_TRY_VAR(config.shared_expert_dim, fields.Uint("shared_expert_intermediate_size", kMaxDim));
    config.shared_expert_gate = config.shared_expert_dim > 0;
  }
  return Ok{};
}

// eos_token_id: a number, a list, or null.
Status AddEndTokens(const JsonFields& fields, ModelConfig& config) {
  const nlohmann::json* value = fields.Find("eos_token_id");
  if (value == nullptr) return Ok{};
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  if (list.size() > kMaxEndTokens) {
    return MakeError(Code::kUnsupported, "{}: {} elements, limit {}", fields.Where("eos_token_id"), list.size(),
                     kMaxEndTokens);
  }
  for (const nlohmann::json& element : list) {
    const bool usable =
        element.is_number_integer() && (!element.is_number_unsigned() || element.get<uint64_t>() < config.vocab_size);
    if (!element.is_number_integer()) {
      return MakeError(Code::kCorruptFile, "{}: wanted a token id or a list of them", fields.Where("eos_token_id"));
    }
    const int64_t id = usable ? element.get<int64_t>() : -1;
    if (id < 0 || id >= int64_t{config.vocab_size}) {
      config.warnings.push_back(
          fmt::format("eos_token_id {} is outside the {} tokens: ignored", element.dump(), config.vocab_size));
      continue;
    }
    const auto token = static_cast<int32_t>(id);
    if (std::find(config.eos_ids.begin(), config.eos_ids.end(), token) == config.eos_ids.end()) {
      config.eos_ids.push_back(token);
    }
  }
  return Ok{};
}

Status ReadBiases(const JsonFields& fields, const Family& family, ModelConfig& config) {
  NM_TRY_VAR(config.attn_out_bias, fields.Bool("attention_bias", false));
  NM_TRY_VAR(config.qkv_bias, fields.Bool("qkv_bias", family.qkv_bias || config.attn_out_bias));
  NM_TRY_VAR(config.output_bias, fields.Bool("lm_head_bias", false));
  return Ok{};
}

Status ReadTying(const JsonFields& fields, const HuggingFaceHints& hints, ModelConfig& config) {
  // All families here untie by default; a folder without lm_head.weight and without a word on it must mean tied.
  NM_TRY_VAR(config.tied_embeddings, fields.Bool("tie_word_embeddings", !hints.has_output));
  if (!fields.Has("tie_word_embeddings") && config.tied_embeddings) {
    config.warnings.push_back("tie_word_embeddings is absent and there is no lm_head.weight: using the embedding");
  }
  return Ok{};
}

}  // namespace

Result<ModelConfig> ConfigFromHuggingFace(std::string_view config_json, std::string_view generation_config_json,
                                          std::string_view name, const ConfigOptions& options,
                                          const HuggingFaceHints& hints) {
  NM_TRY_VAR(const nlohmann::json document, ParseJsonObject(config_json, name));
  JsonFields fields(document, name);
  // Multimodal wrappers keep the language model's fields one level down.
  if (!fields.Has("hidden_size") && fields.Has("text_config")) {
    NM_TRY_VAR(fields, fields.Object("text_config"));
  }
  NM_TRY_VAR(const Family* const family, ChooseFamily(fields));
  const bool as_llama_cpp = family->router == RouterRule::kSparseMixer && options.phimoe_llama_cpp;

  ModelConfig config;
  config.family = family->gguf;
  config.name = name;
  config.norm = as_llama_cpp ? NormKind::kRms : family->norm;
  config.rope_long_by_context = as_llama_cpp;
  config.qk_norm = family->qk_norm;
  NM_TRY(RefuseOtherArithmetic(fields));
  NM_TRY(ReadShape(fields, hints, config));
  NM_TRY(ReadSlidingWindow(fields, config));
  if (family->moe) NM_TRY(ReadExperts(fields, *family, config));
  NM_TRY(ReadRope(fields, *family, config));
  NM_TRY(AddEndTokens(fields, config));
  if (!generation_config_json.empty()) {
    NM_TRY_VAR(const nlohmann::json generation, ParseJsonObject(generation_config_json, "generation_config.json"));
    NM_TRY(AddEndTokens(JsonFields(generation, "generation_config.json"), config));
  }
  NM_TRY(ReadBiases(fields, *family, config));
  NM_TRY(ReadTying(fields, hints, config));
  if (as_llama_cpp) {
    // What llama.cpp does with its conversion of this folder: one scale, from the context lengths.
    config.router = RouterRule::kTopKSoftmax;
    config.sliding_window = 0;
    if (config.rope_original_context > 0) {
      config.rope_short_scale = config.rope_long_scale =
          LongRopeAttentionFactor(config.context_length, config.rope_original_context);
    }
  }
  NM_TRY(Validate(config, name));
  return config;
}

Result<ModelConfig> ConfigFromHuggingFace(std::string_view config_json, std::string_view generation_config_json,
                                          std::string_view name, const ConfigOptions& options) {
  return ConfigFromHuggingFace(config_json, generation_config_json, name, options, HuggingFaceHints{});
}

}  // namespace npumoe
