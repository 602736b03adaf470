// SPDX-License-Identifier: Apache-2.0
// The JSON of safetensors: a file's header and a folder's index. Read as events: nothing nests, nothing is kept twice.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

// One tensor of a header, as written: nothing but the JSON types is checked.
struct SafetensorsEntry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> data_offsets;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of the text
  std::map<std::string, std::string, std::less<>> metadata;
};

// `name` is the subject of error messages. Duplicate keys, unknown fields and negative or broken numbers are errors.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, std::string_view name);

// The weight_map of model.safetensors.index.json: tensor to file name.
Result<std::map<std::string, std::string, std::less<>>> ParseSafetensorsIndex(std::string_view json,
                                                                              std::string_view name);

}  // namespace npumoe
