// SPDX-License-Identifier: Apache-2.0
// Test program: writes log p(next token) after each token of a sequence as raw f64, [tokens, vocab_size].
// usage: log_probs MODEL OUT TOKEN,TOKEN,... [chunk N] [threads N] [context N] [kv f16] [bits 8|16] [phimoe-llama-cpp]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "npumoe/engine.h"

namespace {

std::vector<int32_t> ParseTokens(const char* text) {
  std::vector<int32_t> ids;
  for (char* end = nullptr; *text != '\0'; text = *end == ',' ? end + 1 : end) {
    ids.push_back(static_cast<int32_t>(std::strtol(text, &end, 10)));
    if (end == text) break;
  }
  return ids;
}

npumoe::Status Run(const std::string& model, const std::string& out_path, const std::vector<int32_t>& tokens,
                   const npumoe::EngineOptions& options) {
  auto engine = npumoe::Engine::Open(model, options);
  if (!engine.ok()) return engine.error();
  auto session = engine->NewSession();
  if (!session.ok()) return session.error();
  const size_t vocab_size = engine->info().vocab_size;
  std::vector<float> logits(tokens.size() * vocab_size);
  if (auto status = session->AppendWithLogits(tokens, logits); !status.ok()) return status.error();
  std::FILE* out = std::fopen(out_path.c_str(), "wb");
  if (out == nullptr) return npumoe::Error{npumoe::Code::kIo, out_path + ": cannot write"};
  for (size_t row = 0; row < tokens.size(); ++row) {
    float* const begin = logits.data() + row * vocab_size;
    double top = begin[0], sum = 0;
    for (size_t i = 0; i < vocab_size; ++i) top = std::fmax(top, begin[i]);
    for (size_t i = 0; i < vocab_size; ++i) sum += std::exp(begin[i] - top);
    std::vector<double> row_out(begin, begin + vocab_size);
    for (double& value : row_out) value -= top + std::log(sum);
    std::fwrite(row_out.data(), sizeof(double), vocab_size, out);
  }
  std::fclose(out);
  return npumoe::Ok{};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  npumoe::EngineOptions options;
  options.kv_type = npumoe::KvType::kF32;
  for (int i = 4; i < argc; ++i) {
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (std::strcmp(argv[i], "chunk") == 0)
      options.chunk_tokens = static_cast<uint32_t>(std::atoi(value()));
    else if (std::strcmp(argv[i], "threads") == 0)
      options.n_threads = static_cast<uint32_t>(std::atoi(value()));
    else if (std::strcmp(argv[i], "bits") == 0)
      options.activation_bits = static_cast<uint32_t>(std::atoi(value()));
    else if (std::strcmp(argv[i], "context") == 0)
      options.context_tokens = static_cast<uint32_t>(std::atoi(value()));
    else if (std::strcmp(argv[i], "kv") == 0) {
      const std::string type = value();
      options.kv_type = type == "f16"    ? npumoe::KvType::kF16
                        : type == "q8_0" ? npumoe::KvType::kQ8_0
                                         : npumoe::KvType::kF32;
    } else if (std::strcmp(argv[i], "phimoe-llama-cpp") == 0)
      options.phimoe_llama_cpp = true;
    else
      return 2;
  }
  const auto status = Run(argv[1], argv[2], ParseTokens(argv[3]), options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  return 1;
}
