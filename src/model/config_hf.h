// SPDX-License-Identifier: Apache-2.0
// The parts of ConfigFromHuggingFace that need a look at the tensors.
#pragma once

#include <cstddef>
#include <string_view>

#include "model/config.h"

namespace npumoe {

struct HuggingFaceHints {
  size_t q_rows = 0;       // rows of the first q projection: the head width when config.json names none; 0 = unknown
  bool has_output = true;  // whether lm_head.weight is stored: decides tying when config.json does not say
};

Result<ModelConfig> ConfigFromHuggingFace(std::string_view config_json, std::string_view generation_config_json,
                                          std::string_view name, const ConfigOptions& options,
                                          const HuggingFaceHints& hints);

}  // namespace npumoe
