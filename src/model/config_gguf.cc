// SPDX-License-Identifier: Apache-2.0
// ModelConfig from GGUF metadata. Key names: llama.cpp's `gguf-py` constants.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

#include "base/check.h"
#include "format/gguf.h"
#include "format/printable.h"
#include "model/config.h"
#include "model/families.h"
#include "model/rope_scaling.h"
#include "tensor/quantize.h"

namespace npumoe {
namespace {


// One value per file, also where the format allows one per layer: equal values are accepted, others refused.
class Reader {
 public:
  Reader(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + '.'), subject_(Printable(file.path(), kMaxPathInMessage)) {}

  std::string Key(std::string_view suffix) const { return prefix_ + std::string(suffix); }
  bool Has(std::string_view suffix) const { return file_.Find(Key(suffix)) != nullptr; }

  Result<uint32_t> Uint(std::string_view suffix, uint32_t limit) const {
    const std::string key = Key(suffix);
    uint64_t value = 0;
    const GgufValue* stored = file_.Find(key);
    if (stored != nullptr && std::holds_alternative<GgufArray>(*stored)) {
      NM_TRY_VAR(value, EqualElements(key, std::get<GgufArray>(*stored)));
    } else {
      NM_TRY_VAR(value, file_.Uint(key));
    }
    if (value > limit) {
      return MakeError(Code::kUnsupported, "{}: {} is {}, limit {}", subject_, key, value, limit);
    }
    return static_cast<uint32_t>(value);
  }
  Result<uint32_t> Uint(std::string_view suffix, uint32_t limit, uint32_t fallback) const {
    if (!Has(suffix)) return fallback;
    return Uint(suffix, limit);
  }
  Result<double> Float(std::string_view suffix, double fallback) const {
    if (!Has(suffix)) return fallback;
    const std::string key = Key(suffix);
    NM_TRY_VAR(const double value, file_.Float(key));
    if (!std::isfinite(value)) {
      return MakeError(Code::kCorruptFile, "{}: {} is {}, wanted a finite number", subject_, key, value);
    }
    return value;
  }
  Result<std::string> String(std::string_view suffix, std::string_view fallback) const {
    if (!Has(suffix)) return std::string(fallback);
    NM_TRY_VAR(const std::string_view value, file_.String(Key(suffix)));
    return std::string(value);
  }

  // Outermost extent of a tensor, 0 when the file lacks it. The binder checks the rest of its shape later.
  size_t Rows(std::string_view tensor) const {
    const TensorView* view = file_.FindTensor(tensor);
    return view == nullptr || view->shape.rank < 2 ? 0 : view->shape[0];
  }
  const GgufFile& file() const { return file_; }
  const std::string& subject() const { return subject_; }  // opens every error message

 private:
  Result<uint64_t> EqualElements(const std::string& key, const GgufArray& array) const {
    std::optional<uint64_t> common;
    const auto same = [&](uint64_t value) {
      if (!common) common = value;
      return *common == value;
    };
    bool integers = false, equal = true;
    if (const auto* unsigned_values = std::get_if<std::vector<uint64_t>>(&array)) {
      integers = true;
      equal = std::all_of(unsigned_values->begin(), unsigned_values->end(), same);
    } else if (const auto* signed_values = std::get_if<std::vector<int64_t>>(&array)) {
      integers = std::all_of(signed_values->begin(), signed_values->end(), [](int64_t value) { return value >= 0; });
      equal = std::all_of(signed_values->begin(), signed_values->end(),
                          [&](int64_t value) { return same(static_cast<uint64_t>(value)); });
    }
    if (!integers || !common) {
      return MakeError(Code::kCorruptFile, "{}: {} is not an array of counts", subject_, key);
    }
    if (!equal) {
      return MakeError(Code::kUnsupported, "{}: {} differs from layer to layer, wanted one value", subject_, key);
    }
    return *common;
  }

  const GgufFile& file_;
  std::string prefix_, subject_;
};

// Keys that change the arithmetic in ways these families do not have, with the value that means "not used".
struct NeutralKey {
  std::string_view suffix;
  double neutral;
};
constexpr NeutralKey kNeutralKeys[] = {
    {"attention.clamp_kqv", 0},
    {"attention.scale", 0},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"router_logit_softcapping", 0},
    {"attention.max_alibi_bias", 0},
    {"logit_scale", 1},
    {"residual_scale", 1},
    {"embedding_scale", 1},
    {"expert_weights_scale", 1},
    {"expert_group_count", 1},
    {"expert_group_used_count", 1},
};

Status RefuseOtherArithmetic(const Reader& reader) {
  for (const NeutralKey& key : kNeutralKeys) {
    NM_TRY_VAR(const double value, reader.Float(key.suffix, key.neutral));
    if (value != key.neutral && value != 0) {  // 0 is how writers say "unset"
      return MakeError(Code::kUnsupported, "{}: {} is {}, wanted {} or no such key", reader.subject(),
                       reader.Key(key.suffix), value, key.neutral);
    }
  }
  return Ok{};
}

Status ReadShape(const Reader& reader, ModelConfig& config) {
  NM_TRY_VAR(config.context_length, reader.Uint("context_length", kMaxContext));
  NM_TRY_VAR(config.dim, reader.Uint("embedding_length", kMaxDim));
  NM_TRY_VAR(config.n_layers, reader.Uint("block_count", kMaxLayers));
  NM_TRY_VAR(config.n_heads, reader.Uint("attention.head_count", kMaxHeads));
  NM_TRY_VAR(config.n_kv_heads, reader.Uint("attention.head_count_kv", kMaxHeads, config.n_heads));
  NM_TRY_VAR(config.ffn_dim, reader.Uint("feed_forward_length", kMaxDim, 0));
  const std::string& path = reader.subject();
  if (config.n_heads == 0 || config.n_kv_heads == 0) {
    return MakeError(Code::kCorruptFile, "{}: {} attention heads and {} key/value heads, wanted at least 1", path,
                     config.n_heads, config.n_kv_heads);
  }

  // Head width: the key, else the q projection's rows, else an equal share of the model width.
  uint64_t head_dim = reader.Rows("blk.0.attn_q.weight") / config.n_heads;
  if (head_dim == 0) {
    head_dim = reader.Rows("blk.0.attn_qkv.weight") / (uint64_t{config.n_heads} + 2 * uint64_t{config.n_kv_heads});
  }
  if (head_dim == 0) head_dim = config.dim / config.n_heads;
  const auto fallback = static_cast<uint32_t>(std::min<uint64_t>(head_dim, kMaxDim));
  NM_TRY_VAR(config.head_dim, reader.Uint("attention.key_length", kMaxDim, fallback));
  NM_TRY_VAR(const uint32_t value_dim, reader.Uint("attention.value_length", kMaxDim, config.head_dim));
  if (value_dim != config.head_dim) {
    return MakeError(Code::kUnsupported, "{}: keys are {} wide and values {}, wanted equal widths", path,
                     config.head_dim, value_dim);
  }
  NM_TRY_VAR(config.rope_dim, reader.Uint("rope.dimension_count", kMaxDim, config.head_dim));
  NM_TRY_VAR(config.sliding_window, reader.Uint("attention.sliding_window", UINT32_MAX, 0));
  return Ok{};
}

Status ReadVocabularySize(const Reader& reader, ModelConfig& config) {
  const GgufFile& file = reader.file();
  const size_t rows = reader.Rows("token_embd.weight");
  NM_TRY_VAR(const uint32_t stated, reader.Uint("vocab_size", kMaxVocab, 0));
  if (rows > kMaxVocab) {
    return MakeError(Code::kUnsupported, "{}: token_embd.weight has {} rows, limit {}", reader.subject(), rows,
                     kMaxVocab);
  }
  config.vocab_size = rows > 0 ? static_cast<uint32_t>(rows) : stated;
  if (stated != 0 && stated != config.vocab_size) {
    config.warnings.push_back(fmt::format("{} is {}, but token_embd.weight has {} rows: using the rows",
                                          reader.Key("vocab_size"), stated, rows));
  }
  const GgufValue* tokens = file.Find("tokenizer.ggml.tokens");
  const auto* array = tokens == nullptr ? nullptr : std::get_if<GgufArray>(tokens);
  const auto* strings = array == nullptr ? nullptr : std::get_if<std::vector<std::string_view>>(array);
  if (strings != nullptr && rows > 0 && strings->size() > rows) {
    return MakeError(Code::kCorruptFile, "{}: tokenizer.ggml.tokens has {} entries, but token_embd.weight only {} rows",
                     reader.subject(), strings->size(), rows);
  }
  return Ok{};
}

Status ReadNorm(const Reader& reader, ModelConfig& config) {
  // PhiMoE's converter writes LayerNorm's epsilon under the RMS name; a file that has both means the one of its kind.
  const std::string_view own =
      config.norm == NormKind::kRms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
  const std::string_view other =
      config.norm == NormKind::kRms ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
  if (!reader.Has(own) && !reader.Has(other)) {
    return MakeError(Code::kCorruptFile, "{}: missing key {}", reader.subject(), reader.Key(own));
  }
  NM_TRY_VAR(const double eps, reader.Float(reader.Has(own) ? own : other, 0));
  config.norm_eps = static_cast<float>(eps);
  return Ok{};
}

// A small tensor of rope factors as f32; empty when the file lacks it.
Result<std::vector<float>> ReadFactors(const Reader& reader, std::string_view name, uint32_t n_wanted) {
  const TensorView* view = reader.file().FindTensor(name);
  if (view == nullptr) return std::vector<float>{};
  if (view->shape.elems() != n_wanted || view->shape.inner() != n_wanted) {
    return MakeError(Code::kCorruptFile, "{}: tensor '{}': shape {}, wanted [{}]", reader.subject(), name,
                     view->shape.ToString(), n_wanted);
  }
  std::vector<float> factors(n_wanted);
  DequantizeRow(view->dtype, view->data, factors);
  return factors;
}

Status ReadYarn(const Reader& reader, ModelConfig& config, double factor, float attn_factor) {
  YarnScaling yarn{.factor = factor};
  NM_TRY_VAR(yarn.original_context,
             reader.Uint("rope.scaling.original_context_length", kMaxContext, config.context_length));
  NM_TRY_VAR(yarn.beta_fast, reader.Float("rope.scaling.yarn_beta_fast", yarn.beta_fast));
  NM_TRY_VAR(yarn.beta_slow, reader.Float("rope.scaling.yarn_beta_slow", yarn.beta_slow));
  NM_TRY_VAR(const double ext_factor, reader.Float("rope.scaling.yarn_ext_factor", 1.0));
  NM_TRY_VAR(const double log_multiplier, reader.Float("rope.scaling.yarn_log_multiplier", 0.0));
  if ((ext_factor >= 0 && ext_factor != 1.0) || log_multiplier != 0) {
    return MakeError(Code::kUnsupported, "{}: yarn with ext_factor {} and log_multiplier {}, wanted 1 and 0",
                     reader.subject(), ext_factor, log_multiplier);
  }
  if (yarn.original_context == 0 || yarn.beta_fast <= 0 || yarn.beta_slow <= 0 || factor <= 0) {
    return MakeError(Code::kCorruptFile,
                     "{}: yarn with original context {}, beta_fast {}, beta_slow {}, factor {}, wanted numbers above 0",
                     reader.subject(), yarn.original_context, yarn.beta_fast, yarn.beta_slow, factor);
  }
  SetRopeFactors(config, YarnFactors(config.rope_dim, config.rope_theta, yarn),
                 attn_factor * YarnAttentionFactor(factor));
  return Ok{};
}

// LongRoPE: factors by length reached. The converter stores one attention factor (a formula of the context lengths)
// where the published checkpoint has short_mscale and long_mscale; our own files carry those two under npumoe keys.
Status ReadLongRope(const Reader& reader, bool as_llama_cpp, ModelConfig& config) {
  const uint32_t n_factors = config.rope_dim / 2;
  NM_TRY_VAR(config.rope_short_factors, ReadFactors(reader, "rope_factors_short.weight", n_factors));
  NM_TRY_VAR(config.rope_long_factors, ReadFactors(reader, "rope_factors_long.weight", n_factors));
  if (config.rope_short_factors.empty() != config.rope_long_factors.empty()) {
    return MakeError(Code::kCorruptFile, "{}: missing tensor 'rope_factors_{}.weight' beside its twin",
                     reader.subject(), config.rope_short_factors.empty() ? "short" : "long");
  }
  if (config.rope_long_factors.empty()) return Ok{};
  NM_TRY_VAR(config.rope_original_context,
             reader.Uint("rope.scaling.original_context_length", kMaxContext, config.context_length));
  if (as_llama_cpp) return Ok{};
  const bool own_keys = reader.Has("npumoe.short_mscale") && reader.Has("npumoe.long_mscale");
  if (own_keys) {
    NM_TRY_VAR(const double short_scale, reader.Float("npumoe.short_mscale", 1));
    NM_TRY_VAR(const double long_scale, reader.Float("npumoe.long_mscale", 1));
    config.rope_short_scale = static_cast<float>(short_scale);
    config.rope_long_scale = static_cast<float>(long_scale);
  } else if (!reader.Has("rope.scaling.attn_factor")) {
    config.rope_short_scale = config.rope_long_scale =
        LongRopeAttentionFactor(config.context_length, config.rope_original_context);
    config.warnings.push_back(fmt::format("{} is absent: using {:.4f}, longrope's formula of the context lengths",
                                          reader.Key("rope.scaling.attn_factor"), config.rope_short_scale));
  } else {
    config.warnings.push_back(fmt::format("GGUF does not hold short_mscale and long_mscale: using {} = {:.4f} for both",
                                          reader.Key("rope.scaling.attn_factor"), config.rope_short_scale));
  }
  return Ok{};
}

Status ReadRope(const Reader& reader, const Family& family, bool as_llama_cpp, ModelConfig& config) {
  const std::string& path = reader.subject();
  config.rope_interleaved = family.gguf_rope_interleaved;
  NM_TRY_VAR(config.rope_theta, reader.Float("rope.freq_base", family.gguf_rope_theta));
  if (!reader.Has("rope.freq_base")) {
    if (family.gguf_rope_theta == 0) {
      return MakeError(Code::kCorruptFile, "{}: missing key {}, which architecture '{}' needs", path,
                       reader.Key("rope.freq_base"), config.family);
    }
    config.warnings.push_back(
        fmt::format("{} is absent: using {}", reader.Key("rope.freq_base"), family.gguf_rope_theta));
  }
  NM_TRY_VAR(const std::string type, reader.String("rope.scaling.type", "linear"));
  const std::string_view factor_key = reader.Has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  NM_TRY_VAR(double factor, reader.Float(factor_key, 1.0));
  if (factor == 0) factor = 1;  // writers' "unset"
  if (factor < 0) {
    return MakeError(Code::kCorruptFile, "{}: {} is {}, wanted above 0", path, reader.Key(factor_key), factor);
  }
  NM_TRY_VAR(const double attn_factor, reader.Float("rope.scaling.attn_factor", 1.0));
  config.rope_short_scale = config.rope_long_scale = static_cast<float>(attn_factor);

  if (type == "yarn") return ReadYarn(reader, config, factor, static_cast<float>(attn_factor));
  if (type != "linear" && type != "none" && type != "longrope") {
    return MakeError(Code::kUnsupported, "{}: {} is '{}', wanted one of: none, linear, longrope, yarn", path,
                     reader.Key("rope.scaling.type"), Printable(type));
  }
  NM_TRY_VAR(std::vector<float> frequencies, ReadFactors(reader, "rope_freqs.weight", config.rope_dim / 2));
  if (!frequencies.empty()) {
    SetRopeFactors(config, std::move(frequencies), config.rope_short_scale);
  } else {
    NM_TRY(ReadLongRope(reader, as_llama_cpp, config));
  }
  // In a published LongRoPE config the factor describes the context only; llama.cpp applies it like a linear one.
  if (factor != 1 && (type == "linear" || (type == "longrope" && as_llama_cpp))) ApplyLinearScaling(config, factor);
  return Ok{};
}

// Expert width: the key, else the extent that the stored experts have.
Result<uint32_t> ExpertDim(const Reader& reader, const ModelConfig& config) {
  if (reader.Has("expert_feed_forward_length")) return reader.Uint("expert_feed_forward_length", kMaxDim);
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    const TensorView* merged = reader.file().FindTensor(fmt::format("blk.{}.ffn_up_exps.weight", layer));
    if (merged != nullptr && merged->shape.rank >= 2) {
      return static_cast<uint32_t>(std::min<size_t>(merged->shape[merged->shape.rank - 2], UINT32_MAX));
    }
    const size_t rows = reader.Rows(fmt::format("blk.{}.ffn_up.0.weight", layer));
    if (rows > 0) return static_cast<uint32_t>(std::min<size_t>(rows, UINT32_MAX));
  }
  return config.ffn_dim;
}

Status ReadRouter(const Reader& reader, const Family& family, ModelConfig& config) {
  config.router = family.router;
  config.renormalize_top_k = family.gguf_renormalize;
  if (reader.Has("expert_weights_norm")) {
    NM_TRY_VAR(config.renormalize_top_k, reader.file().Bool(reader.Key("expert_weights_norm")));
  }
  if (config.router == RouterRule::kSparseMixer) {
    NM_TRY_VAR(const double jitter, reader.Float("npumoe.router_jitter_noise", family.router_jitter));
    config.router_jitter = static_cast<float>(jitter);
  }
  // llama.cpp's ids: 1 softmax, 2 sigmoid, 3 softmax over the chosen logits.
  NM_TRY_VAR(const uint32_t gating, reader.Uint("expert_gating_func", UINT32_MAX, 0));
  if (gating == 3) config.router = RouterRule::kTopKSoftmax;
  if (gating != 0 && gating != 1 && gating != 3) {
    return MakeError(Code::kUnsupported, "{}: {} is {}, wanted 1 (softmax) or 3 (softmax over the chosen)",
                     reader.subject(), reader.Key("expert_gating_func"), gating);
  }
  if (gating == 0) {
    config.warnings.push_back(fmt::format("{} is absent: using the rule of architecture '{}'",
                                          reader.Key("expert_gating_func"), config.family));
  }
  return Ok{};
}

Status ReadExperts(const Reader& reader, const Family& family, ModelConfig& config) {
  NM_TRY_VAR(config.top_k, reader.Uint("expert_used_count", UINT32_MAX));
  NM_TRY_VAR(config.expert_dim, ExpertDim(reader, config));
  config.dense_layer.assign(config.n_layers, false);
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    const bool routed = reader.file().FindTensor(fmt::format("blk.{}.ffn_gate_inp.weight", layer)) != nullptr;
    const bool dense = reader.file().FindTensor(fmt::format("blk.{}.ffn_up.weight", layer)) != nullptr;
    config.dense_layer[layer] = dense && !routed;
  }
  NM_TRY(ReadRouter(reader, family, config));
  if (family.shared_expert) {
    size_t rows = 0;
    for (uint32_t layer = 0; layer < config.n_layers && rows == 0; ++layer) {
      rows = reader.Rows(fmt::format("blk.{}.ffn_up_shexp.weight", layer));
    }
    const auto fallback = static_cast<uint32_t>(std::min<size_t>(rows, UINT32_MAX));
    NM_TRY_VAR(config.shared_expert_dim, reader.Uint("expert_shared_feed_forward_length", kMaxDim, fallback));
    if (config.shared_expert_dim == 0) config.shared_expert_dim = config.ffn_dim;
    config.shared_expert_gate = true;
  }
  return Ok{};
}

Status ReadEndTokens(const GgufFile& file, ModelConfig& config) {
  for (const std::string_view key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (file.Find(key) == nullptr) continue;
    NM_TRY_VAR(const uint64_t id, file.Uint(key));
    if (id >= config.vocab_size) {
      config.warnings.push_back(fmt::format("{} is {}, beyond the {} tokens: ignored", key, id, config.vocab_size));
      continue;
    }
    const auto token = static_cast<int32_t>(id);
    if (std::find(config.eos_ids.begin(), config.eos_ids.end(), token) == config.eos_ids.end()) {
      config.eos_ids.push_back(token);
    }
  }
  return Ok{};
}

// Rows of the table that the architecture's name allows, decided by whether there are experts.
Result<const Family*> ChooseFamily(const Reader& reader, std::string_view architecture, uint32_t n_experts) {
  if (const Family* family = FindGgufFamily(architecture, n_experts > 0)) return family;
  return MakeError(Code::kCorruptFile, "{}: {} is {}, which architecture '{}' cannot have", reader.subject(),
                   reader.Key("expert_count"), n_experts, architecture);
}

}  // namespace

Result<ModelConfig> ConfigFromGguf(const GgufFile& file, const ConfigOptions& options) {
  NM_TRY_VAR(const std::string_view architecture, file.String("general.architecture"));
  const Reader reader(file, architecture);
  if (FindGgufFamily(architecture, false) == nullptr && FindGgufFamily(architecture, true) == nullptr) {
    return MakeError(Code::kUnsupported, "{}: architecture '{}' is not supported, wanted one of: {}", reader.subject(),
                     Printable(architecture), KnownGgufFamilies());
  }
  ModelConfig config;
  NM_TRY_VAR(config.n_experts, reader.Uint("expert_count", kMaxExperts, 0));
  NM_TRY_VAR(const Family* const family, ChooseFamily(reader, architecture, config.n_experts));
  const bool sparse_mixer = family->router == RouterRule::kSparseMixer;
  const bool as_llama_cpp = sparse_mixer && options.phimoe_llama_cpp;

  config.family = architecture;
  const std::string stem = file.path().substr(file.path().find_last_of('/') + 1);
  config.name = stem.substr(0, stem.rfind(".gguf"));
  if (file.Find("general.name") != nullptr) {
    NM_TRY_VAR(const std::string_view name, file.String("general.name"));
    if (!name.empty()) config.name = name;
  }
  config.norm = as_llama_cpp ? NormKind::kRms : family->norm;
  config.rope_long_by_context = as_llama_cpp;
  config.qk_norm = family->qk_norm;
  config.qkv_bias = family->qkv_bias || family->gguf_all_biases;
  config.attn_out_bias = config.output_bias = family->gguf_all_biases;
  NM_TRY(RefuseOtherArithmetic(reader));
  NM_TRY(ReadShape(reader, config));
  NM_TRY(ReadVocabularySize(reader, config));
  NM_TRY(ReadNorm(reader, config));
  if (config.head_dim < 2 || config.rope_dim > config.head_dim) NM_TRY(Validate(config, reader.subject()));
  NM_TRY(ReadRope(reader, *family, as_llama_cpp, config));
  if (config.n_experts > 0) NM_TRY(ReadExperts(reader, *family, config));
  NM_TRY(ReadEndTokens(file, config));
  config.tied_embeddings = file.FindTensor("output.weight") == nullptr;
  if (as_llama_cpp) {
    config.router = RouterRule::kTopKSoftmax;
    config.sliding_window = 0;  // llama.cpp reads none for this architecture
  }
  NM_TRY(Validate(config, reader.subject()));
  return config;
}

}  // namespace npumoe
