// SPDX-License-Identifier: Apache-2.0
// Any bytes as tokenizer.json: an error in one line, or a tokenizer whose ids are all in its vocabulary.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "format/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = npumoe::Tokenizer::FromHuggingFace(input, {}, {}, "input");
  if (!tokenizer.ok()) {
    for (const char c : tokenizer.error().message) NM_CHECK(static_cast<uint8_t>(c) >= 0x20 && c != 0x7f);
    return 0;
  }
  // A fixed text and the end of the input itself, which holds whatever the fuzzer finds.
  constexpr size_t kTailBytes = 48;
  const std::string_view tail = input.substr(size - std::min(size, kTailBytes));
  for (const std::string_view text : {std::string_view("ab  a<s>1\n\xC3\xA9\xFF e\xCC\x81"), tail}) {
    for (const bool special : {false, true}) {
      const auto ids = tokenizer->Encode(text, {.add_special = special, .parse_special = special});
      for (const int32_t id : ids) NM_CHECK(id >= 0 && static_cast<size_t>(id) < tokenizer->vocab_size());
      static_cast<void>(tokenizer->Decode(ids, special));
    }
  }
  return 0;
}
