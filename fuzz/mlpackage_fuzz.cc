// SPDX-License-Identifier: Apache-2.0
// Any bytes as a Core ML package: four bytes of length, a model file of that length, the rest a weight file. The same
// bytes as a manifest and as an .npy file.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "base/check.h"
#include "graph/mlpackage/manifest.h"
#include "graph/mlpackage/mlpackage.h"
#include "graph/npy.h"

namespace npumoe {
namespace {

void CheckMessage(std::string_view message) {
  for (const char c : message) NM_CHECK(static_cast<uint8_t>(c) >= 0x20 && c != 0x7f);
}

// Constants take no more than a few times what the file holds.
void CheckGraph(const Graph& graph, size_t file_bytes) {
  NM_CHECK(ValidateGraph(graph).ok());
  NM_CHECK(graph.WeightBytes() <= (size_t{1} << 20) + 5 * file_bytes);
  NM_CHECK(HashGraph(graph).size() == 32);
}

}  // namespace
}  // namespace npumoe

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  uint32_t model_bytes = 0;
  if (size >= sizeof(model_bytes)) {
    std::memcpy(&model_bytes, data, sizeof(model_bytes));
    const auto rest = bytes.subspan(sizeof(model_bytes));
    const auto model = rest.first(std::min<size_t>(model_bytes, rest.size()));
    const auto package = npumoe::ParsePackage(model, rest.subspan(model.size()), "input");
    if (package.ok()) {
      npumoe::CheckGraph(package->graph, size);
    } else {
      npumoe::CheckMessage(package.error().message);
    }
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto path = npumoe::ModelPathFromManifest(text);
  if (!path.ok()) npumoe::CheckMessage(path.error().message);
  const auto array = npumoe::ParseNpy(bytes, "input");
  if (!array.ok()) npumoe::CheckMessage(array.error().message);
  return 0;
}
