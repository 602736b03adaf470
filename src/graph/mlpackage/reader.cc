// SPDX-License-Identifier: Apache-2.0
// ReadPackage and SummarizePackage: folder, manifest, model file.
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "base/files.h"
#include "base/mapped_file.h"
#include "graph/mlpackage/manifest.h"
#include "graph/mlpackage/mil_reader.h"
#include "graph/mlpackage/mlpackage.h"
#include "graph/mlpackage/opset.h"
#include "graph/names.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxManifestBytes = 1 << 20;
// Model files of whole language models have a few megabytes, as weights lie in files of their own. Parsed, the worst
// bytes take about forty times their size.
constexpr size_t kMaxModelBytes = size_t{64} << 20;
constexpr int kMinVersion = SpecificationVersionOf(kMinOpset), kMaxVersion = SpecificationVersionOf(kMaxOpset);

Result<mil::Model> ParseModel(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxModelBytes) {
    return MakeError(Code::kUnsupported, "the model file has {} bytes, at most {}", bytes.size(), kMaxModelBytes);
  }
  mil::Model model;
  if (!model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return MakeError(Code::kCorruptFile, "the model file is no Core ML model");
  }
  const int version = model.specification_version();
  if (version < 1) return MakeError(Code::kCorruptFile, "the model file has no specification version");
  if (version > kMaxVersion) {
    return MakeError(Code::kUnsupported, "specification version {}, at most {}", version, kMaxVersion);
  }
  if (!model.has_program() || version < kMinVersion) {
    return MakeError(Code::kUnsupported,
                     "no ML Program (specification version {}); other kinds of models are not supported", version);
  }
  return model;
}

PackageMetadata MetadataOf(const mil::Model& model) {
  const mil::ModelDescription& description = model.description();
  PackageMetadata metadata;
  metadata.specification_version = model.specification_version();
  if (model.program().functions_size() > 0) metadata.opset = model.program().functions(0).value().opset();
  metadata.multi_function = description.functions_size() > 0;
  metadata.default_function = metadata.multi_function ? description.default_function() : "main";
  metadata.author = description.metadata().author();
  metadata.license = description.metadata().license();
  metadata.version = description.metadata().version();
  metadata.short_description = description.metadata().short_description();
  for (const mil::TextEntry& entry : description.metadata().user_defined()) {
    metadata.user_defined[entry.key()] = entry.value();
  }
  return metadata;
}

Result<Package> BuildPackage(const mil::Model& model, size_t model_bytes, WeightFiles& weights) {
  Package package{MetadataOf(model), {}};
  NM_TRY_VAR(package.graph, ReadProgram(model.program(), model.specification_version(), model_bytes, weights));
  const std::string& name = package.metadata.default_function;
  if (package.graph.Find(name) == nullptr) {
    return MakeError(Code::kCorruptFile, "the default function '{}' is not in the program", ShownName(name));
  }
  return package;
}

template <typename T>
Result<T> About(std::string_view subject, Result<T> result) {
  if (result.ok()) return result;
  return MakeError(result.error().code, "{}: {}", subject, result.error().message);
}

struct ModelFile {
  std::string folder;  // that "@model_path" stands for
  MappedFile file;
};

Result<ModelFile> OpenModel(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return MakeError(Code::kNotFound, "{}: no such package", path);
  if (!fs::is_directory(path, error)) return MakeError(Code::kCorruptFile, "{}: not a folder, as packages are", path);
  NM_TRY_VAR(const std::string text, ReadFile(path + "/" + std::string(kManifestName), kMaxManifestBytes));
  NM_TRY_VAR(const std::string relative, About(path, ModelPathFromManifest(text)));
  const std::string model_path = path + "/Data/" + relative;
  NM_TRY_VAR(MappedFile file, MappedFile::Open(model_path));
  return ModelFile{fs::path(model_path).parent_path().string(), std::move(file)};
}

void AddFeature(const mil::NamedType& named, std::vector<PackageFunction::Feature>& out) {
  out.push_back({named.name(), TypeText(named.type())});
}

PackageFunction SummarizeFunction(const mil::FunctionEntry& entry) {
  PackageFunction out;
  out.name = entry.key();
  const mil::Function& function = entry.value();
  for (const mil::NamedType& input : function.inputs()) {
    AddFeature(input, input.type().has_state() ? out.states : out.inputs);
  }
  for (const mil::BlockEntry& block : function.blocks()) {
    if (block.key() != function.opset()) continue;
    std::map<std::string_view, const mil::NamedType*> types;
    for (const mil::Operation& op : block.value().operations()) {
      if (op.type() != "const") ++out.ops[op.type()];
      for (const mil::NamedType& output : op.outputs()) types[output.name()] = &output;
    }
    for (const std::string& name : block.value().outputs()) {
      const auto found = types.find(name);
      if (found != types.end()) AddFeature(*found->second, out.outputs);
    }
  }
  return out;
}

// Bytes of the files below the model's folder other than the model itself.
uint64_t WeightFileBytes(const ModelFile& model) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(model.folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored) && it->path() != model.file.path()) bytes += it->file_size(ignored);
  }
  return bytes;
}

}  // namespace

Result<Package> ReadPackage(const std::string& path) {
  NM_TRY_VAR(const ModelFile opened, OpenModel(path));
  NM_TRY_VAR(const mil::Model model, About(path, ParseModel(opened.file.bytes())));
  WeightFiles weights(opened.folder);
  return About(path, BuildPackage(model, opened.file.bytes().size(), weights));
}

Result<Package> ParsePackage(std::span<const std::byte> model, std::span<const std::byte> weights,
                             std::string_view subject) {
  NM_TRY_VAR(const mil::Model parsed, About(subject, ParseModel(model)));
  WeightFiles files(weights);
  return About(subject, BuildPackage(parsed, model.size(), files));
}

Result<PackageSummary> SummarizePackage(const std::string& path) {
  NM_TRY_VAR(const ModelFile opened, OpenModel(path));
  NM_TRY_VAR(const mil::Model model, About(path, ParseModel(opened.file.bytes())));
  PackageSummary summary{MetadataOf(model), {}, opened.file.bytes().size(), WeightFileBytes(opened)};
  for (const mil::FunctionEntry& entry : model.program().functions()) {
    summary.functions.push_back(SummarizeFunction(entry));
  }
  return summary;
}

bool IsPackagePath(const std::string& path) {
  std::string name = path;
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  std::error_code error;
  return name.ends_with(".mlpackage") || fs::exists(fs::path(name) / std::string(kManifestName), error);
}

}  // namespace npumoe
