// SPDX-License-Identifier: Apache-2.0
// Any bytes as a GGUF file: an error in one line, or tensors that lie inside the bytes.
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "format/gguf.h"

namespace npumoe {
namespace {

// Reads the ends of every borrowed range, so that a sanitizer sees one that is wrong.
uint64_t Touch(const GgufContents& contents, std::span<const std::byte> bytes) {
  uint64_t sum = contents.version + contents.data_offset;
  for (const auto& [name, view] : contents.tensors) {
    const auto size_bytes = ByteSize(view.dtype, view.shape);
    NM_CHECK(size_bytes.ok() && *size_bytes > 0);
    NM_CHECK(view.data >= bytes.data() && *size_bytes <= bytes.size());
    NM_CHECK(view.data - bytes.data() <= static_cast<ptrdiff_t>(bytes.size() - *size_bytes));
    sum += static_cast<uint64_t>(view.data[0]) + static_cast<uint64_t>(view.data[*size_bytes - 1]);
  }
  const auto touch_text = [&sum](std::string_view text) {
    if (!text.empty()) sum += static_cast<uint8_t>(text.front()) + static_cast<uint8_t>(text.back());
  };
  for (const auto& [key, value] : contents.metadata) {
    NM_CHECK(!key.empty());
    if (const auto* const text = std::get_if<std::string_view>(&value)) touch_text(*text);
    const auto* const array = std::get_if<GgufArray>(&value);
    if (array == nullptr) continue;
    if (const auto* const texts = std::get_if<std::vector<std::string_view>>(array)) {
      for (const std::string_view text : *texts) touch_text(text);
    }
  }
  return sum;
}

}  // namespace
}  // namespace npumoe

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto parsed = npumoe::ParseGguf(bytes, "input");
  if (parsed.ok()) {
    volatile uint64_t sink = npumoe::Touch(*parsed, bytes);
    static_cast<void>(sink);
    return 0;
  }
  for (const char c : parsed.error().message) NM_CHECK(static_cast<uint8_t>(c) >= 0x20 && c != 0x7f);
  return 0;
}
