// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <sys/stat.h>

#include <optional>

#include "base/check.h"
#include "base/files.h"
#include "format/gguf.h"
#include "format/printable.h"
#include "format/safetensors.h"
#include "model/bind_weights.h"
#include "model/config_hf.h"

namespace npumoe {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;  // published ones are below 100 KB

bool IsFolder(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

struct Model::Impl {
  std::string path;
  ModelConfig config;
  std::optional<GgufFile> gguf;
  std::optional<SafetensorsFolder> folder;
  ModelWeights weights;
  std::vector<Tensor> converted;

  const std::map<std::string, TensorView, std::less<>>& tensors() const {
    return gguf ? gguf->tensors() : folder->tensors();
  }

  Status OpenGguf(const ConfigOptions& options);
  Status OpenFolder(const ConfigOptions& options);
  Status Bind(const TensorMap& tensors, Naming naming);
};

Status Model::Impl::OpenGguf(const ConfigOptions& options) {
  NM_TRY_VAR(gguf, GgufFile::Open(path));
  NM_TRY_VAR(config, ConfigFromGguf(*gguf, options));
  TensorMap tensors;
  for (const auto& [name, view] : gguf->tensors()) tensors.emplace(name, NamedView{view, name});
  return Bind(tensors, Naming::kGguf);
}

Status Model::Impl::OpenFolder(const ConfigOptions& options) {
  const std::string config_path = path + "/config.json";
  NM_TRY_VAR(const std::string config_json, ReadFile(config_path, kMaxConfigBytes));
  std::string generation_json;
  auto generation = ReadFile(path + "/generation_config.json", kMaxConfigBytes);
  if (generation.ok()) {
    generation_json = std::move(generation).value();
  } else if (generation.error().code != Code::kNotFound) {
    return generation.error();
  }
  const std::string subject = Printable(config_path, kMaxPathInMessage);
  auto opened = SafetensorsFolder::Open(path);
  if (!opened.ok()) {
    // A model that we do not support (quantised, say) is named as such, not by what its tensors look like.
    const auto unhinted = ConfigFromHuggingFace(config_json, generation_json, subject, options);
    return !unhinted.ok() && unhinted.error().code == Code::kUnsupported ? unhinted.error() : opened.error();
  }
  folder = std::move(opened).value();
  TensorMap tensors;
  for (const auto& [name, view] : folder->tensors()) {
    const auto [it, inserted] = tensors.emplace(CanonicalName(name), NamedView{view, name});
    if (!inserted) {
      return MakeError(Code::kCorruptFile, "{}: tensors '{}' and '{}' have the same meaning",
                       Printable(path, kMaxPathInMessage), Printable(it->second.file_name), Printable(name));
    }
  }
  HuggingFaceHints hints;
  const auto query = tensors.find(LayerPrefix(Naming::kHuggingFace, 0) + "self_attn.q_proj.weight");
  if (query != tensors.end() && query->second.view.shape.rank == 2) hints.q_rows = query->second.view.shape[0];
  hints.has_output = tensors.find("lm_head.weight") != tensors.end();
  NM_TRY_VAR(config, ConfigFromHuggingFace(config_json, generation_json, subject, options, hints));
  config.name = path.substr(path.find_last_of('/', path.find_last_not_of('/')) + 1);
  while (!config.name.empty() && config.name.back() == '/') config.name.pop_back();
  return Bind(tensors, Naming::kHuggingFace);
}

Status Model::Impl::Bind(const TensorMap& tensors, Naming naming) {
  NM_TRY_VAR(BoundWeights bound, BindWeights(tensors, naming, config, Printable(path, kMaxPathInMessage)));
  weights = std::move(bound.weights);
  converted = std::move(bound.converted);
  for (std::string& warning : bound.warnings) config.warnings.push_back(std::move(warning));
  return Ok{};
}

Result<Model> Model::Open(const std::string& path, const ConfigOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  NM_TRY(IsFolder(path) ? impl->OpenFolder(options) : impl->OpenGguf(options));
  return Model(std::move(impl));
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

const ModelConfig& Model::config() const { return impl_->config; }
const ModelWeights& Model::weights() const { return impl_->weights; }
const GgufFile* Model::gguf() const { return impl_->gguf ? &*impl_->gguf : nullptr; }
const std::string& Model::path() const { return impl_->path; }

std::vector<TensorListing> Model::Tensors() const {
  std::vector<TensorListing> out;
  for (const auto& [name, view] : impl_->tensors()) {
    const auto bytes = ByteSize(view.dtype, view.shape);
    NM_CHECK(bytes.ok());  // the parser accepted the tensor
    out.push_back({name, view.dtype, view.shape, bytes.value(), view.data});
  }
  return out;
}

size_t Model::mapped_bytes() const { return impl_->gguf ? impl_->gguf->size_bytes() : impl_->folder->size_bytes(); }

size_t Model::converted_bytes() const {
  size_t total = 0;
  for (const Tensor& tensor : impl_->converted) total += tensor.size_bytes();
  return total;
}

}  // namespace npumoe
