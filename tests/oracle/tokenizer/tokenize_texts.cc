// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes many texts with one of our tokenizers, for the comparison in tokenizer_oracle.mjs.
//   tokenize_texts gguf FILE TEXTS OUT      tokenize_texts hf FOLDER TEXTS OUT
// TEXTS: per text, u32 length and bytes. OUT: per text, u32 number of ids, i32 ids, u32 length and bytes of the decoded
// text. Numbers are in this machine's byte order, which is little-endian wherever this runs.
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "format/tokenizer.h"

namespace npumoe {
namespace {

Result<Tokenizer> Load(const std::string& kind, const std::string& path) {
  if (kind == "gguf") {
    auto file = GgufFile::Open(path);
    if (!file.ok()) return file.error();
    return Tokenizer::FromGguf(*file);
  }
  const auto tokenizer = ReadFile(path + "/tokenizer.json");
  if (!tokenizer.ok()) return tokenizer.error();
  const auto config = ReadFile(path + "/tokenizer_config.json");
  return Tokenizer::FromHuggingFace(*tokenizer, config.ok() ? *config : std::string(), {}, path);
}

void Put(uint32_t number, std::string* out) { out->append(reinterpret_cast<const char*>(&number), sizeof(number)); }

int Run(const std::vector<std::string>& arguments) {
  const auto fail = [](const std::string& message) {
    fmt::print(stderr, "tokenize_texts: {}\n", message);
    return 1;
  };
  if (arguments.size() != 4) return fail("wanted: gguf|hf PATH TEXTS OUT");
  const auto tokenizer = Load(arguments[0], arguments[1]);
  if (!tokenizer.ok()) return fail(tokenizer.error().message);
  const auto texts = ReadFile(arguments[2]);
  if (!texts.ok()) return fail(texts.error().message);
  std::string out;
  for (std::string_view left = *texts; !left.empty();) {
    uint32_t length = 0;
    if (left.size() < sizeof(length)) return fail("texts: cut off");
    std::memcpy(&length, left.data(), sizeof(length));
    left.remove_prefix(sizeof(length));
    if (left.size() < length) return fail("texts: cut off");
    const auto ids = tokenizer->Encode(left.substr(0, length), {.add_special = false, .parse_special = true});
    left.remove_prefix(length);
    Put(static_cast<uint32_t>(ids.size()), &out);
    out.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
    const std::string decoded = tokenizer->Decode(ids, true);
    Put(static_cast<uint32_t>(decoded.size()), &out);
    out += decoded;
  }
  const Status written = WriteFileAtomic(arguments[3], out);
  return written.ok() ? 0 : fail(written.error().message);
}

}  // namespace
}  // namespace npumoe

int main(int argc, char** argv) { return npumoe::Run({argv + 1, argv + argc}); }
