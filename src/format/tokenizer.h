// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, from GGUF metadata or a Hugging Face tokenizer.json.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/gguf.h"
#include "npumoe/result.h"

namespace npumoe {

// The key-value part of a GGUF file.
using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

struct TokenizeOptions {
  bool add_special = false;      // add BOS (and EOS) where the model says so
  bool parse_special = false;    // control tokens written in the text ("<|im_end|>") become their ids
  bool is_continuation = false;  // the text goes on after tokens encoded before: no prefix that only a start gets
};

struct SpecialTokens {
  std::optional<int32_t> bos, eos, unk, pad;
  std::vector<int32_t> eog;  // every id that ends a generation, ascending: eos, eot, known end markers
  bool add_bos = false, add_eos = false;
};

// Thread-safe: immutable after construction; Encode uses time linear (up to a logarithm) in the text.
class Tokenizer {
 public:
  // `pre_override` replaces tokenizer.ggml.pre (empty: use the file's). A missing pre falls back to the documented
  // default, with a line in warnings(); an unknown one is an error that lists the known names.
  static Result<Tokenizer> FromGguf(const GgufFile& file, std::string_view pre_override = {});
  // The same from metadata alone, borrowed during the call; `name` is the subject of messages.
  static Result<Tokenizer> FromMetadata(const GgufMetadata& metadata, std::string_view name,
                                        std::string_view pre_override = {});
  // `tokenizer_json` and the optional `tokenizer_config_json`, `generation_config_json` are the files' contents
  // (empty = absent). Errors name `name`.
  static Result<Tokenizer> FromHuggingFace(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                                           std::string_view generation_config_json, std::string_view name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Invalid UTF-8 is encoded byte by byte (byte-level and byte-fallback vocabularies lose nothing).
  std::vector<int32_t> Encode(std::string_view text, const TokenizeOptions& options) const;

  // Raw bytes of one token; may be part of a UTF-8 character. Control tokens give "" unless `special`.
  std::string Piece(int32_t id, bool special) const;
  // The text of all ids; SentencePiece-style vocabularies drop the one leading space they added.
  std::string Decode(const std::vector<int32_t>& ids, bool special) const;

  size_t vocab_size() const;
  const SpecialTokens& special() const;
  bool IsEog(int32_t id) const;
  std::optional<int32_t> Find(std::string_view token) const;  // the vocabulary's own spelling
  const std::string& chat_template() const;                   // Jinja source, or empty
  const std::string& description() const;                     // "BPE (qwen2), 151936 tokens"
  const std::vector<std::string>& warnings() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace npumoe
