// SPDX-License-Identifier: Apache-2.0
#include "npumoe/make_model.h"

#include <algorithm>

#include "base/check.h"
#include "model/random_model.h"

namespace npumoe {

std::vector<std::string_view> MakeModelShapes() { return ShapeNames(); }

Result<uint64_t> MakeModel(const MakeModelOptions& options, const std::string& path) {
  RandomModelSpec spec;
  NM_TRY_VAR(spec.config, ShapeByName(options.shape));
  const auto dtype = DTypeFromName(options.type);
  if (!dtype) {
    std::string known;
    for (size_t i = 0; i < kDTypeCount; ++i) {
      known.append(known.empty() ? "" : ", ").append(Info(static_cast<DType>(i)).name);
    }
    return MakeError(Code::kInvalidArgument, "type '{}' is not known, wanted one of: {}", options.type, known);
  }
  spec.matrix_dtype = *dtype;
  ModelConfig& config = spec.config;
  const auto replace = [](uint32_t& field, uint32_t value) {
    if (value != 0) field = value;
  };
  replace(config.n_layers, options.n_layers);
  replace(config.vocab_size, options.vocab_size);
  replace(config.dim, options.dim);
  const bool about_experts = options.n_experts != 0 || options.top_k != 0 || options.expert_dim != 0 || options.zipf ||
                             !options.merged_experts;
  if (config.n_experts == 0 && about_experts) {
    return MakeError(Code::kInvalidArgument,
                     "shape '{}' is dense: it takes no number, width, use or layout of experts", options.shape);
  }
  replace(config.n_experts, options.n_experts);
  replace(config.top_k, options.top_k);
  replace(config.expert_dim, options.expert_dim);
  if (config.n_experts > 0)
    config.dense_layer.assign(std::min(config.n_layers, kMaxLayers), false);  // Validate refuses more
  spec.seed = options.seed;
  spec.zipf = options.zipf.value_or(spec.zipf);
  spec.format = options.hugging_face ? CheckpointFormat::kHuggingFace : CheckpointFormat::kGguf;
  spec.merged_experts = options.merged_experts;
  spec.n_splits = options.n_splits;
  spec.keep_going = options.keep_going;
  return WriteRandomModel(spec, path);
}

}  // namespace npumoe
