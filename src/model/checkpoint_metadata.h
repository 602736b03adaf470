// SPDX-License-Identifier: Apache-2.0
// The descriptions that go with a random checkpoint's tensors: GGUF metadata, and a Hugging Face folder's JSON files.
#pragma once

#include <string>

#include "format/gguf_writer.h"
#include "model/families.h"
#include "model/random_model.h"
#include "model/random_vocab.h"

namespace npumoe {

void SetGgufMetadata(const RandomModelSpec& spec, const Family& family, const RandomVocab& vocab, GgufWriter& writer);

// config.json and generation_config.json. kUnsupported for rope factors that no scaling rule of config.json gives.
Result<std::string> HuggingFaceConfigJson(const RandomModelSpec& spec, const Family& family, const RandomVocab& vocab);
std::string GenerationConfigJson(const RandomVocab& vocab);

}  // namespace npumoe
