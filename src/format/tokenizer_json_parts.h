// SPDX-License-Identifier: Apache-2.0
// The components of a tokenizer.json around its model: normalizer, pre_tokenizer, post_processor, decoder.
#pragma once

#include "format/json_reader.h"
#include "format/tokenizer_impl.h"

namespace npumoe {

// Each reads one component into `data`; a kind that is not implemented is kUnsupported and named.
Status ReadNormalizer(const JsonField& field, int depth, TextNormalizer* normalizer);

// *byte_level: the text reaches the model in GPT-2's letters for bytes.
Status ReadPreTokenizer(const JsonField& field, int depth, PreTokenizer* pre_tokenizer, bool* byte_level);

// Ids that TemplateProcessing puts before and after a single text.
Status ReadPostProcessor(const JsonField& field, int depth, size_t vocab_size, std::vector<int32_t>* prefix_ids,
                         std::vector<int32_t>* suffix_ids);

// *strips_leading_space: one space at the start of the decoded text is dropped.
Status ReadDecoder(const JsonField& field, int depth, bool byte_level, bool* strips_leading_space);

}  // namespace npumoe
