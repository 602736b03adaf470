// SPDX-License-Identifier: Apache-2.0
#include "graph/mlpackage/manifest.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "graph/hash.h"
#include "graph/mlpackage/blob_file.h"
#include "graph/names.h"

namespace npumoe {
namespace {

using Json = nlohmann::json;

// A version-4 UUID whose bits come from a hash instead of chance.
std::string MakeUuid(std::string_view content_hash, std::string_view item) {
  ContentHash hash;
  hash.Add(content_hash);
  hash.Add(item);
  std::string hex = hash.Hex();
  hex[12] = '4';
  hex[16] = "89ab"[(hex[16] <= '9' ? hex[16] - '0' : hex[16] - 'a' + 10) % 4];
  for (const size_t at : {8, 13, 18, 23}) hex.insert(at, 1, '-');
  return hex;
}

Json MakeItem(std::string_view description, std::string_view name, std::string_view path) {
  return {{"author", "com.apple.CoreML"}, {"description", description}, {"name", name}, {"path", path}};
}

// The member of an object, or nullptr.
const Json* Member(const Json& object, const std::string& key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

Result<std::string> Text(const Json& object, const std::string& key) {
  const Json* member = Member(object, key);
  if (member == nullptr || !member->is_string()) {
    return MakeError(Code::kCorruptFile, "{}: '{}' is missing or no text", kManifestName, ShownName(key));
  }
  return member->get<std::string>();
}

}  // namespace

std::string ManifestText(std::string_view content_hash, bool with_weights) {
  const std::string model = MakeUuid(content_hash, "model"), weights = MakeUuid(content_hash, "weights");
  Json json = {{"fileFormatVersion", "1.0.0"}, {"rootModelIdentifier", model}};
  json["itemInfoEntries"][model] = MakeItem("CoreML Model Specification", "model.mlmodel", kModelItem);
  if (with_weights) json["itemInfoEntries"][weights] = MakeItem("CoreML Model Weights", "weights", kWeightsItem);
  return json.dump(4) + "\n";
}

Result<std::string> ModelPathFromManifest(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return MakeError(Code::kCorruptFile, "{}: not JSON", kManifestName);
  NM_TRY_VAR(const std::string version, Text(json, "fileFormatVersion"));
  if (version != "1.0.0") {
    return MakeError(Code::kUnsupported, "{}: fileFormatVersion '{}', wanted 1.0.0", kManifestName, ShownName(version));
  }
  NM_TRY_VAR(const std::string root, Text(json, "rootModelIdentifier"));
  const Json* items = Member(json, "itemInfoEntries");
  const Json* item = items == nullptr ? nullptr : Member(*items, root);
  if (item == nullptr) {
    return MakeError(Code::kCorruptFile, "{}: itemInfoEntries has no '{}', the root model", kManifestName,
                     ShownName(root));
  }
  NM_TRY_VAR(const std::string path, Text(*item, "path"));
  if (!IsSafeRelativePath(path)) {
    return MakeError(Code::kCorruptFile, "{}: path '{}' leaves the package", kManifestName, ShownName(path));
  }
  return path;
}

}  // namespace npumoe
