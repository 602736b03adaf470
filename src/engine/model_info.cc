// SPDX-License-Identifier: Apache-2.0
#include "engine/model_info.h"

#include <array>

#include "base/check.h"
#include "base/files.h"
#include "format/gguf.h"

namespace npumoe {
namespace {

std::string RouterText(const ModelConfig& config) {
  if (config.n_experts == 0) return "none (dense)";
  switch (config.router) {
    case RouterRule::kSoftmaxTopK:
      return fmt::format("softmax over all, top-{}{}", config.top_k,
                         config.renormalize_top_k ? ", renormalised" : ", not renormalised");
    case RouterRule::kTopKSoftmax:
      return fmt::format("top-{}, softmax over the winners", config.top_k);
    case RouterRule::kSparseMixer:
      return fmt::format("sparsemixer, top-{}, jitter {}", config.top_k, config.router_jitter);
  }
  return "";
}

std::string RopeText(const ModelConfig& config) {
  std::string text = fmt::format("theta {:g}, {} of {} values per head, {}", config.rope_theta, config.rope_dim,
                                 config.head_dim, config.rope_interleaved ? "pairs" : "halves");
  if (config.rope_original_context > 0) {
    text += fmt::format(", long factors above {} tokens (scale {:g} / {:g})", config.rope_original_context,
                        config.rope_short_scale, config.rope_long_scale);
  } else if (!config.rope_short_factors.empty()) {
    text += ", scaled frequencies";
  }
  return text;
}

std::string NormText(const ModelConfig& config) {
  std::string text =
      fmt::format("{}, eps {:g}", config.norm == NormKind::kRms ? "RMS norm" : "LayerNorm", config.norm_eps);
  if (config.qk_norm == QkNorm::kPerHead) text += ", q/k norm per head";
  if (config.qk_norm == QkNorm::kFullWidth) text += ", q/k norm over the full width";
  return text;
}

uint64_t ViewBytes(const TensorView& view) { return view.empty() ? 0 : ByteSize(view.dtype, view.shape).value(); }

// Parameters used for one token: everything but the embedding table and the experts not chosen.
uint64_t ActiveParams(const Model& model, uint64_t n_params) {
  const ModelConfig& config = model.config();
  uint64_t active = n_params;
  if (!config.tied_embeddings) active -= model.weights().embedding.shape.elems();
  const uint64_t expert = uint64_t{3} * config.dim * config.expert_dim;
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    if (config.IsMoeLayer(layer)) active -= expert * (config.n_experts - config.top_k);
  }
  return active;
}

void AddTensors(const Model& model, ModelInfo& info) {
  std::array<uint64_t, kDTypeCount> bytes_of_type{};
  for (const TensorListing& tensor : model.Tensors()) {
    info.tensors.push_back(
        {tensor.name, std::string(Info(tensor.dtype).name), tensor.shape.ToString(), tensor.size_bytes});
    info.n_params += tensor.shape.elems();
    info.size_bytes += tensor.size_bytes;
    bytes_of_type[static_cast<size_t>(tensor.dtype)] += tensor.size_bytes;
  }
  size_t most = 0;
  for (size_t type = 1; type < kDTypeCount; ++type) {
    if (bytes_of_type[type] > bytes_of_type[most]) most = type;
  }
  info.type = std::string(Info(static_cast<DType>(most)).name);
}

// assumed: the largest published tokenizer.json has about 35 MB.
constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

Result<std::string> ReadOptional(const std::string& path) {
  auto text = ReadFile(path, kMaxConfigBytes);
  if (!text.ok() && text.error().code == Code::kNotFound) return std::string();
  return text;
}

}  // namespace

ModelInfo MakeModelInfo(const Model& model, const Tokenizer& tokenizer) {
  const ModelConfig& config = model.config();
  ModelInfo info;
  info.path = model.path();
  info.format = model.gguf() != nullptr ? fmt::format("GGUF v{}", model.gguf()->version()) : "Hugging Face";
  info.family = config.family;
  info.name = config.name;
  info.tokenizer = tokenizer.description();
  AddTensors(model, info);
  info.n_active_params = ActiveParams(model, info.n_params);
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    if (!config.IsMoeLayer(layer)) continue;
    const LayerWeights& weights = model.weights().layers[layer];
    if (info.n_moe_layers++ == 0) {
      info.expert_bytes =
          ViewBytes(weights.expert_gate[0]) + ViewBytes(weights.expert_up[0]) + ViewBytes(weights.expert_down[0]);
    }
  }
  info.vocab_size = config.vocab_size;
  info.context_length = config.context_length;
  info.dim = config.dim;
  info.n_layers = config.n_layers;
  info.n_heads = config.n_heads;
  info.n_kv_heads = config.n_kv_heads;
  info.head_dim = config.head_dim;
  info.ffn_dim = config.ffn_dim;
  info.n_experts = config.n_experts;
  info.top_k = config.top_k;
  info.expert_dim = config.expert_dim;
  info.shared_expert_dim = config.shared_expert_dim;
  info.router = RouterText(config);
  info.rope = RopeText(config);
  info.norm = NormText(config);
  info.warnings = config.warnings;
  info.warnings.insert(info.warnings.end(), tokenizer.warnings().begin(), tokenizer.warnings().end());
  return info;
}

Result<Tokenizer> OpenTokenizer(const Model& model, const std::string& pre_override) {
  if (model.gguf() != nullptr) return Tokenizer::FromGguf(*model.gguf(), pre_override);
  const std::string folder = model.path() + "/";
  NM_TRY_VAR(const std::string tokenizer, ReadFile(folder + "tokenizer.json", kMaxTokenizerBytes));
  NM_TRY_VAR(const std::string tokenizer_config, ReadOptional(folder + "tokenizer_config.json"));
  NM_TRY_VAR(const std::string generation_config, ReadOptional(folder + "generation_config.json"));
  return Tokenizer::FromHuggingFace(tokenizer, tokenizer_config, generation_config, folder + "tokenizer.json");
}

}  // namespace npumoe
