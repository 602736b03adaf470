// SPDX-License-Identifier: Apache-2.0
#include "model/bind_weights.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/check.h"
#include "format/printable.h"
#include "model/families.h"
#include "tensor/quantize.h"

namespace npumoe {
namespace {

constexpr size_t kListedUnused = 5;  // names in the warning about unused tensors

// Writers drop or add outer extents of 1; the extents that matter are compared.
Shape WithoutLeadingOnes(Shape shape) {
  while (shape.rank > 1 && shape[0] == 1) {
    std::copy(shape.dims.begin() + 1, shape.dims.end(), shape.dims.begin());
    shape.dims.back() = 0;
    --shape.rank;
  }
  return shape;
}

// Rows [begin, begin + n) of a matrix, in place.
TensorView RowRange(const TensorView& matrix, size_t begin, size_t n) {
  const auto row_bytes = RowBytes(matrix.dtype, matrix.shape.inner());
  NM_CHECK(row_bytes.ok() && matrix.shape.rank == 2 && begin + n <= matrix.shape[0]);
  return {matrix.dtype, Shape::Of(n, matrix.shape[1]), matrix.data + begin * row_bytes.value()};
}

class Binder {
 public:
  Binder(const TensorMap& tensors, Naming naming, const ModelConfig& config, std::string_view subject)
      : tensors_(tensors),
        naming_(naming),
        config_(config),
        subject_(subject),
        family_(FindGgufFamily(config.family, config.n_experts > 0)) {
    NM_CHECK(family_ != nullptr);
  }

  Result<BoundWeights> Bind() {
    for (const ModelTensor& tensor : ModelTensors()) NM_TRY(BindModelTensor(tensor));
    if (config_.tied_embeddings) out_.weights.output = out_.weights.embedding;
    out_.weights.layers.resize(config_.n_layers);
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
      NM_TRY(BindQkv(layer));
      for (const LayerTensor& tensor : LayerTensors()) NM_TRY(BindLayerTensor(tensor, layer));
      if (config_.IsMoeLayer(layer)) NM_TRY(BindExperts(layer));
    }
    NM_TRY(ReviewUnused());
    return std::move(out_);
  }

 private:
  using Entry = TensorMap::value_type;

  const Entry* Find(std::string_view name) {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return nullptr;
    used_.insert(it->first);
    return &*it;
  }
  const Entry* Find(const std::string& prefix, const NameList& names, uint32_t expert = 0) {
    for (const std::string_view name : names) {
      if (name.empty()) break;
      if (const Entry* entry = Find(prefix + FillIn(name, expert))) return entry;
    }
    return nullptr;
  }
  static std::string FillIn(std::string_view pattern, uint32_t expert) {
    const size_t gap = pattern.find("{}");
    if (gap == std::string_view::npos) return std::string(pattern);
    return fmt::format("{}{}{}", pattern.substr(0, gap), expert, pattern.substr(gap + 2));
  }

  Error Missing(const std::string& prefix, const NameList& names, uint32_t expert = 0) const {
    std::string list;
    for (const std::string_view name : names) {
      if (name.empty()) break;
      list += fmt::format("{}'{}{}'", list.empty() ? "" : " or ", prefix, FillIn(name, expert));
    }
    return MakeError(Code::kNotFound, "{}: missing tensor {} for architecture '{}'", subject_, list, config_.family);
  }
  Error BadShape(const Entry& entry, const Shape& wanted) const {
    return MakeError(Code::kCorruptFile, "{}: tensor '{}': shape {}, wanted {}", subject_,
                     Printable(entry.second.file_name), entry.second.view.shape.ToString(), wanted.ToString());
  }

  // The tensor's view with exactly the wanted shape.
  Result<TensorView> Shaped(const Entry& entry, const Shape& wanted) const {
    TensorView view = entry.second.view;
    if (WithoutLeadingOnes(view.shape) != WithoutLeadingOnes(wanted)) return BadShape(entry, wanted);
    view.shape = wanted;
    return view;
  }

  // In place when already kF32 and aligned, else an owned copy.
  Result<TensorView> Small(const TensorView& view) {
    if (view.dtype == DType::kF32 && reinterpret_cast<uintptr_t>(view.data) % alignof(float) == 0) return view;
    NM_TRY_VAR(Tensor tensor, Tensor::Make(DType::kF32, view.shape));
    const size_t cols = view.shape.inner();
    const size_t rows = view.shape.elems() / cols;
    NM_TRY_VAR(const size_t row_bytes, RowBytes(view.dtype, cols));
    for (size_t row = 0; row < rows; ++row) {
      DequantizeRow(view.dtype, view.data + row * row_bytes, {tensor.f32() + row * cols, cols});
    }
    out_.converted.push_back(std::move(tensor));
    return out_.converted.back().view();
  }

  Result<TensorView> Take(const Entry& entry, Extent rows, Extent cols, bool small) {
    const size_t n_rows = ExtentOf(config_, rows), n_cols = ExtentOf(config_, cols);
    const Shape wanted = rows == Extent::kNone ? Shape::Of(n_cols) : Shape::Of(n_rows, n_cols);
    NM_TRY_VAR(const TensorView view, Shaped(entry, wanted));
    if (small) return Small(view);
    return view;
  }

  Status BindModelTensor(const ModelTensor& tensor) {
    const std::string_view name = tensor.Name(naming_);
    const bool is_output = tensor.view == &ModelWeights::output;
    const bool needed = IsNeeded(tensor.need, config_, *family_, /*moe_layer=*/false);
    if (!needed && tensor.need == Need::kNormBias) return Ok{};  // left to the review of unused ones
    const Entry* entry = Find(name);
    if (entry == nullptr) {
      if (needed) return Missing("", NameList{name});
      return Ok{};
    }
    if (is_output && config_.tied_embeddings) return Ok{};  // a stored copy of the embedding
    NM_TRY_VAR(out_.weights.*tensor.view, Take(*entry, tensor.rows, tensor.cols, tensor.small));
    return Ok{};
  }

  // Whether `layer` must have the tensor. What the config does not ask for, all layers of a kind have or none.
  bool Needs(const LayerTensor& tensor, uint32_t layer) const {
    const bool moe = config_.IsMoeLayer(layer);
    if (IsNeeded(tensor.need, config_, *family_, moe)) return true;
    if (!MayHave(tensor, moe)) return false;
    for (uint32_t earlier = 0; earlier < layer; ++earlier) {
      if (config_.IsMoeLayer(earlier) == moe) return !(out_.weights.layers[earlier].*tensor.view).empty();
    }
    return false;
  }
  // Tensors that a layer has no use for (a router in a dense layer) are left to the review of unused ones.
  bool MayHave(const LayerTensor& tensor, bool moe) const {
    switch (tensor.need) {
      case Need::kQkvBias:
      case Need::kAttnOutBias:
        return true;
      case Need::kOptional:
        return moe || tensor.view != &LayerWeights::router_bias;
      default:
        return IsNeeded(tensor.need, config_, *family_, moe);
    }
  }

  Status BindLayerTensor(const LayerTensor& tensor, uint32_t layer) {
    TensorView& view = out_.weights.layers[layer].*tensor.view;
    if (!view.empty() || !MayHave(tensor, config_.IsMoeLayer(layer))) return Ok{};
    const std::string prefix = LayerPrefix(naming_, layer);
    const Entry* entry = Find(prefix, tensor.Names(naming_));
    if (entry == nullptr) {
      if (Needs(tensor, layer)) return Missing(prefix, tensor.Names(naming_));
      return Ok{};
    }
    NM_TRY_VAR(view, Take(*entry, tensor.rows, tensor.cols, tensor.small));
    return Ok{};
  }

  // Queries, keys and values in one tensor: three ranges of its rows.
  Status BindQkv(uint32_t layer) {
    LayerWeights& weights = out_.weights.layers[layer];
    const std::string prefix = LayerPrefix(naming_, layer);
    const size_t q = ExtentOf(config_, Extent::kQ), kv = ExtentOf(config_, Extent::kKv);
    if (const Entry* entry = Find(prefix, FusedQkvNames(naming_, /*bias=*/false))) {
      NM_TRY_VAR(const TensorView all, Take(*entry, Extent::kQkv, Extent::kDim, /*small=*/false));
      weights.wq = RowRange(all, 0, q);
      weights.wk = RowRange(all, q, kv);
      weights.wv = RowRange(all, q + kv, kv);
    }
    if (const Entry* entry = Find(prefix, FusedQkvNames(naming_, /*bias=*/true))) {
      NM_TRY_VAR(TensorView all, Take(*entry, Extent::kNone, Extent::kQkv, /*small=*/true));
      const auto part = [&](size_t begin, size_t n) {
        return TensorView{DType::kF32, Shape::Of(n), all.data + begin * sizeof(float)};
      };
      weights.bq = part(0, q);
      weights.bk = part(q, kv);
      weights.bv = part(q + kv, kv);
    }
    return Ok{};
  }

  Status BindExperts(uint32_t layer) {
    NM_TRY_VAR(const bool fused, BindFusedGateUp(layer));
    const std::string prefix = LayerPrefix(naming_, layer);
    for (const ExpertTensor& tensor : ExpertTensors()) {
      std::vector<TensorView>& views = out_.weights.layers[layer].*tensor.views;
      if (fused && !views.empty()) continue;
      const size_t rows = ExtentOf(config_, tensor.rows), cols = ExtentOf(config_, tensor.cols);
      views.reserve(config_.n_experts);
      if (const Entry* entry = Find(prefix, tensor.Merged(naming_))) {
        NM_TRY_VAR(const TensorView all, Shaped(*entry, Shape::Of(config_.n_experts, rows, cols)));
        for (uint32_t expert = 0; expert < config_.n_experts; ++expert) views.push_back(all.Slice(expert));
        continue;
      }
      for (uint32_t expert = 0; expert < config_.n_experts; ++expert) {
        const Entry* entry = Find(prefix, tensor.Single(naming_), expert);
        if (entry == nullptr) {
          // With not even the first expert stored singly, the merged tensor is what a reader will look for.
          return expert > 0 || naming_ == Naming::kHuggingFace ? Missing(prefix, tensor.Single(naming_), expert)
                                                               : Missing(prefix, tensor.Merged(naming_));
        }
        NM_TRY_VAR(const TensorView view, Shaped(*entry, Shape::Of(rows, cols)));
        views.push_back(view);
      }
    }
    return Ok{};
  }

  // Gate above up in one tensor. Some exporters store experts as [in, out]; the shapes tell, and such a file is
  // refused.
  Result<bool> BindFusedGateUp(uint32_t layer) {
    const std::string prefix = LayerPrefix(naming_, layer);
    const Entry* entry = Find(prefix, FusedGateUpNames(naming_));
    if (entry == nullptr) return false;
    const size_t n = config_.n_experts, wide = ExtentOf(config_, Extent::kTwoExperts), dim = config_.dim;
    const Shape wanted = Shape::Of(n, wide, dim);
    const Entry* down = Find(prefix, ExpertTensors()[2].Merged(naming_));
    const bool gate_up_turned = entry->second.view.shape == Shape::Of(n, dim, wide) && wide != dim;
    const bool down_turned = down != nullptr && down->second.view.shape == Shape::Of(n, config_.expert_dim, dim) &&
                             config_.expert_dim != dim;
    if (gate_up_turned || down_turned) {
      return MakeError(Code::kUnsupported, "{}: tensor '{}': experts stored as [in, out], wanted [out, in] {}",
                       subject_, Printable((gate_up_turned ? entry : down)->second.file_name), wanted.ToString());
    }
    NM_TRY_VAR(const TensorView all, Shaped(*entry, wanted));
    LayerWeights& weights = out_.weights.layers[layer];
    for (uint32_t expert = 0; expert < config_.n_experts; ++expert) {
      const TensorView both = all.Slice(expert);
      weights.expert_gate.push_back(RowRange(both, 0, config_.expert_dim));
      weights.expert_up.push_back(RowRange(both, config_.expert_dim, config_.expert_dim));
    }
    return true;
  }

  // Layer number of "blk.7.x" or "model.layers.7.x".
  std::optional<uint64_t> LayerOf(std::string_view name) const {
    const std::string_view prefix = naming_ == Naming::kGguf ? "blk." : "model.layers.";
    if (name.substr(0, prefix.size()) != prefix) return std::nullopt;
    uint64_t layer = 0;
    size_t i = prefix.size();
    for (; i < name.size() && name[i] >= '0' && name[i] <= '9' && layer <= kMaxLayers; ++i) {
      layer = layer * 10 + static_cast<uint64_t>(name[i] - '0');
    }
    if (i == prefix.size() || i >= name.size() || name[i] != '.') return std::nullopt;
    return layer;
  }

  // Ignoring a bias, scale or norm of a layer we run would give wrong tokens without a word: that is an error. Others
  // (extra layers for speculative decoding, vision towers, buffers) are listed in a warning.
  Status ReviewUnused() {
    size_t n_unused = 0;
    std::string listed;
    for (const auto& [name, entry] : tensors_) {
      if (used_.count(name) != 0 || IsRopeFactors(name)) continue;
      const auto layer = LayerOf(name);
      const bool changes_result = name.ends_with(".bias") || name.ends_with(".scale") ||
                                  name.ends_with("_norm.weight") || name.ends_with("layernorm.weight");
      if (changes_result && (layer ? *layer < config_.n_layers : IsModelTensor(name))) {
        return MakeError(Code::kUnsupported, "{}: tensor '{}' has no place in architecture '{}'", subject_,
                         Printable(entry.file_name), config_.family);
      }
      if (n_unused++ < kListedUnused) listed += (listed.empty() ? "" : ", ") + Printable(entry.file_name);
    }
    if (n_unused > 0) {
      out_.warnings.push_back(fmt::format("{} unused tensor{}: {}{}", n_unused, n_unused == 1 ? "" : "s", listed,
                                          n_unused > kListedUnused ? ", ..." : ""));
    }
    return Ok{};
  }
  bool IsModelTensor(std::string_view name) const {
    const auto tensors = ModelTensors();
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const ModelTensor& tensor) { return tensor.Name(naming_) == name; });
  }
  // Read by the config, not bound here.
  bool IsRopeFactors(std::string_view name) const {
    return naming_ == Naming::kGguf &&
           (name == "rope_freqs.weight" || name == "rope_factors_long.weight" || name == "rope_factors_short.weight");
  }

  const TensorMap& tensors_;
  const Naming naming_;
  const ModelConfig& config_;
  const std::string subject_;
  const Family* const family_;
  std::set<std::string_view> used_;
  BoundWeights out_;
};

}  // namespace

Result<BoundWeights> BindWeights(const TensorMap& tensors, Naming naming, const ModelConfig& config,
                                 std::string_view subject) {
  return Binder(tensors, naming, config, subject).Bind();
}

}  // namespace npumoe
