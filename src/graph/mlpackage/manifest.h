// SPDX-License-Identifier: Apache-2.0
// Manifest.json: which item of a package is the model.
#pragma once

#include <string>
#include <string_view>

#include "npumoe/result.h"

namespace npumoe {

inline constexpr std::string_view kManifestName = "Manifest.json";
inline constexpr std::string_view kModelItem = "com.apple.CoreML/model.mlmodel";  // below Data/
inline constexpr std::string_view kWeightsItem = "com.apple.CoreML/weights";      // likewise
inline constexpr std::string_view kWeightFile = "weight.bin";

// The identifiers are made from `content_hash` (32 hex digits), so that equal packages have equal manifests.
std::string ManifestText(std::string_view content_hash, bool with_weights);

// Path of the model file below Data/. kCorruptFile, naming the key, when the manifest is not one.
Result<std::string> ModelPathFromManifest(std::string_view text);

}  // namespace npumoe
