// SPDX-License-Identifier: Apache-2.0
// Any bytes as a GGUF file with a tokenizer: an error in one line, or a tokenizer whose ids are all in its vocabulary.
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "format/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parsed = npumoe::ParseGguf(std::as_bytes(std::span(data, size)), "input");
  if (!parsed.ok()) return 0;
  const auto tokenizer = npumoe::Tokenizer::FromMetadata(parsed->metadata, "input");
  if (!tokenizer.ok()) {
    for (const char c : tokenizer.error().message) NM_CHECK(static_cast<uint8_t>(c) >= 0x20 && c != 0x7f);
    return 0;
  }
  for (const bool special : {false, true}) {
    const auto ids = tokenizer->Encode("ab  a<s>1\n\xC3\xA9\xFF e\xCC\x81<|end|> \na",
                                       {.add_special = special, .parse_special = special});
    for (const int32_t id : ids) NM_CHECK(id >= 0 && static_cast<size_t>(id) < tokenizer->vocab_size());
    static_cast<void>(tokenizer->Decode(ids, special));
  }
  return 0;
}
