// SPDX-License-Identifier: Apache-2.0
// A model in words and totals, for people and for `npumoe info`.
#pragma once

#include <string>

#include "format/tokenizer.h"
#include "model/weights.h"
#include "npumoe/engine.h"

namespace npumoe {

// All but kv_type and kv_bytes_per_token.
ModelInfo MakeModelInfo(const Model& model, const Tokenizer& tokenizer);

// The tokenizer of an opened checkpoint, from its metadata or the files in its folder.
Result<Tokenizer> OpenTokenizer(const Model& model, const std::string& pre_override);

}  // namespace npumoe
