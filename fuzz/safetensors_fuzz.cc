// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file and as the index of a folder.
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "format/safetensors.h"
#include "format/safetensors_json.h"

namespace npumoe {
namespace {

// Accepted files cover their data exactly: what the tensors take is what there is.
uint64_t Touch(const SafetensorsContents& contents, std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  size_t total_bytes = 0;
  for (const auto& [name, view] : contents.tensors) {
    const auto size_bytes = ByteSize(view.dtype, view.shape);
    NM_CHECK(size_bytes.ok() && *size_bytes <= bytes.size() && view.data >= bytes.data());
    NM_CHECK(view.data - bytes.data() <= static_cast<ptrdiff_t>(bytes.size() - *size_bytes));
    if (*size_bytes > 0) {
      sum += static_cast<uint64_t>(view.data[0]) + static_cast<uint64_t>(view.data[*size_bytes - 1]);
    }
    total_bytes += *size_bytes;
  }
  NM_CHECK(total_bytes < bytes.size());
  return sum;
}

void CheckMessage(std::string_view message) {
  for (const char c : message) NM_CHECK(static_cast<uint8_t>(c) >= 0x20 && c != 0x7f);
}

}  // namespace
}  // namespace npumoe

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto parsed = npumoe::ParseSafetensors(bytes, "input");
  if (parsed.ok()) {
    volatile uint64_t sink = npumoe::Touch(*parsed, bytes);
    static_cast<void>(sink);
  } else {
    npumoe::CheckMessage(parsed.error().message);
  }
  const auto index = npumoe::ParseSafetensorsIndex({reinterpret_cast<const char*>(data), size}, "input");
  if (!index.ok()) npumoe::CheckMessage(index.error().message);
  return 0;
}
