// SPDX-License-Identifier: Apache-2.0
// A tokenizer from the files of a Hugging Face folder.
#include "base/check.h"
#include "format/tokenizer_impl.h"

namespace npumoe {

Status LoadJsonTokenizer(std::string_view, std::string_view, std::string_view, std::string_view name, TokenizerData*) {
  return MakeError(Code::kUnsupported, "{}: tokenizer.json is not read yet", name);
}

}  // namespace npumoe
