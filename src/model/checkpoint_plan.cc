// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace npumoe {
namespace {

// Scales that keep activations near 1 through the layers: 1 / sqrt(inputs) for every matrix, and the two that write to
// the residual stream smaller with the number of layers, so that the stream only doubles in variance.
constexpr float kCommonShare = 0.5f;  // of CommonDirection() in the residual stream
constexpr float kRouterScale =
    0.55f;  // standard deviation of the router logits around their expert's bias: with biases of
            // -0.35 ln(rank) and top-8 of 128, the hottest expert gets about 12 times the mean
constexpr float kOutputScale = 2.0f;  // of the logits: neither flat nor one-hot
constexpr float kSmall = 0.1f;        // biases, and norm weights around 1

// Seeds of tensors that do not belong to a layer.
constexpr uint64_t kModelWide = ~uint64_t{0};

class Planner {
 public:
  Planner(const RandomModelSpec& spec, const Family& family)
      : spec_(spec),
        config_(spec.config),
        family_(family),
        naming_(spec.format == CheckpointFormat::kGguf ? Naming::kGguf : Naming::kHuggingFace) {}

  std::vector<PlannedTensor> Plan() {
    for (size_t i = 0; i < ModelTensors().size(); ++i) PlanModelTensor(i);
    if (naming_ == Naming::kGguf) PlanRopeFactors();
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
      for (size_t i = 0; i < LayerTensors().size(); ++i) PlanLayerTensor(i, layer);
      if (config_.IsMoeLayer(layer)) PlanExperts(layer);
    }
    return std::move(plan_);
  }

 private:
  // GGUF: vectors and routers are F32, as llama.cpp wants them. Hugging Face: one dtype throughout.
  DType DTypeOf(size_t cols, bool small) const {
    if (naming_ == Naming::kHuggingFace) return spec_.matrix_dtype;
    if (small) return DType::kF32;
    if (cols % Info(spec_.matrix_dtype).block_elems == 0) return spec_.matrix_dtype;
    return cols % Info(DType::kQ8_0).block_elems == 0 ? DType::kQ8_0 : DType::kF16;
  }

  PlannedTensor Start(std::string name, Extent rows, Extent cols, bool small) const {
    PlannedTensor out;
    out.name = std::move(name);
    const size_t n_rows = ExtentOf(config_, rows), n_cols = ExtentOf(config_, cols);
    out.shape = rows == Extent::kNone || (rows == Extent::kOne && naming_ == Naming::kGguf) ? Shape::Of(n_cols)
                                                                                            : Shape::Of(n_rows, n_cols);
    out.dtype = DTypeOf(n_cols, small);
    out.rule.scale = 1.0f / std::sqrt(static_cast<float>(n_cols));
    if (rows == Extent::kNone) {
      out.rule.scale = kSmall;
      if (out.name.ends_with(".weight")) out.fill = FillKind::kAroundOne;
    }
    return out;
  }

  float IntoStream(float scale) const { return scale / std::sqrt(2.0f * static_cast<float>(config_.n_layers)); }

  void PlanModelTensor(size_t index) {
    const ModelTensor& tensor = ModelTensors()[index];
    if (!IsNeeded(tensor.need, config_, family_, /*moe_layer=*/false)) return;
    PlannedTensor out = Start(std::string(tensor.Name(naming_)), tensor.rows, tensor.cols, tensor.small);
    out.seeds = {MixSeed({spec_.seed, kModelWide, index})};
    if (tensor.view == &ModelWeights::embedding) out.rule = {.scale = 1.0f, .common = kCommonShare};
    if (tensor.view == &ModelWeights::output) out.rule.scale *= kOutputScale;
    plan_.push_back(std::move(out));
  }

  void PlanRopeFactors() {
    const auto add = [&](const char* name, const std::vector<float>& factors) {
      PlannedTensor out;
      out.name = name;
      out.shape = Shape::Of(factors.size());
      out.fill = FillKind::kFixed;
      out.fixed = factors;
      plan_.push_back(std::move(out));
    };
    if (config_.rope_short_factors.empty()) return;
    if (config_.rope_original_context == 0) return add("rope_freqs.weight", config_.rope_short_factors);
    add("rope_factors_long.weight", config_.rope_long_factors);
    add("rope_factors_short.weight", config_.rope_short_factors);
  }

  void PlanLayerTensor(size_t index, uint32_t layer) {
    const LayerTensor& tensor = LayerTensors()[index];
    if (!IsNeeded(tensor.need, config_, family_, config_.IsMoeLayer(layer))) return;
    PlannedTensor out =
        Start(LayerPrefix(naming_, layer) + NameOf(tensor.Names(naming_)), tensor.rows, tensor.cols, tensor.small);
    out.seeds = {MixSeed({spec_.seed, layer, index})};
    const auto view = tensor.view;
    if (view == &LayerWeights::wo || view == &LayerWeights::w_down || view == &LayerWeights::shared_down) {
      out.rule.scale = IntoStream(out.rule.scale);
    }
    const bool rotated = view == &LayerWeights::wq || view == &LayerWeights::wk || view == &LayerWeights::bq ||
                         view == &LayerWeights::bk;
    if (rotated && naming_ == Naming::kGguf && config_.rope_interleaved) out.interleaved_head_dim = config_.head_dim;
    if (view == &LayerWeights::router) {
      out.fill = FillKind::kRouter;
      out.rule.scale *= kRouterScale;
      out.skew = RouterSkew(layer);
    }
    plan_.push_back(std::move(out));
  }

  // Per expert, how much of CommonDirection() its router row gets so that its logits are shifted by -zipf * ln(rank).
  // Ranks are shuffled per layer; the mean shift is 0, because some routing rules look at ratios of logits.
  std::vector<float> RouterSkew(uint32_t layer) const {
    std::vector<uint32_t> expert_of_rank(config_.n_experts);
    std::iota(expert_of_rank.begin(), expert_of_rank.end(), 0u);
    Random random(MixSeed({spec_.seed, layer, kModelWide}));
    for (size_t i = expert_of_rank.size(); i > 1; --i)
      std::swap(expert_of_rank[i - 1], expert_of_rank[random.Below(i)]);
    std::vector<double> shift(config_.n_experts);
    double mean = 0;
    for (uint32_t rank = 0; rank < config_.n_experts; ++rank) {
      shift[expert_of_rank[rank]] = -spec_.zipf * std::log(rank + 1.0);
      mean += shift[expert_of_rank[rank]] / config_.n_experts;
    }
    // A normalised stream holds `share` of the pattern in every element: the dot product with c * pattern is c * dim *
    // share.
    const double share = kCommonShare / std::sqrt(1.0 + kCommonShare * kCommonShare);
    std::vector<float> skew;
    for (const double value : shift) skew.push_back(static_cast<float>((value - mean) / (config_.dim * share)));
    return skew;
  }

  // Families write "mlp" or "block_sparse_moe"; the second spelling is the older one of Mixtral and PhiMoE.
  std::string NameOf(const NameList& names) const {
    const bool old_spelling = family_.hf_n_experts_key == "num_local_experts" && !names[1].empty();
    return std::string(naming_ == Naming::kHuggingFace && old_spelling ? names[1] : names[0]);
  }

  void PlanExperts(uint32_t layer) {
    for (size_t index = 0; index < ExpertTensors().size(); ++index) {
      const ExpertTensor& tensor = ExpertTensors()[index];
      const std::string prefix = LayerPrefix(naming_, layer);
      const bool merged = naming_ == Naming::kGguf && spec_.merged_experts;
      PlannedTensor one = Start("", tensor.rows, tensor.cols, /*small=*/false);
      if (tensor.views == &LayerWeights::expert_down) one.rule.scale = IntoStream(one.rule.scale);
      for (uint32_t expert = 0; expert < config_.n_experts; ++expert) {
        one.seeds.push_back(MixSeed({spec_.seed, layer, LayerTensors().size() + index, expert}));
        if (merged) continue;
        PlannedTensor single = one;
        single.name = prefix + fmt::format(fmt::runtime(NameOf(tensor.Single(naming_))), expert);
        plan_.push_back(std::move(single));
        one.seeds.clear();
      }
      if (!merged) continue;
      one.name = prefix + NameOf(tensor.Merged(naming_));
      one.shape = Shape::Of(config_.n_experts, one.shape[0], one.shape[1]);
      plan_.push_back(std::move(one));
    }
  }

  const RandomModelSpec& spec_;
  const ModelConfig& config_;
  const Family& family_;
  const Naming naming_;
  std::vector<PlannedTensor> plan_;
};

}  // namespace

std::vector<PlannedTensor> PlanCheckpoint(const RandomModelSpec& spec, const Family& family) {
  return Planner(spec, family).Plan();
}

}  // namespace npumoe
