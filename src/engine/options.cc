// SPDX-License-Identifier: Apache-2.0
#include "engine/options.h"

#include <algorithm>

#include "base/check.h"
#include "engine/kv_cache.h"
#include "engine/system.h"

namespace npumoe {
namespace {

constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kMaxChunkTokens = 1u << 16;

// The trained context, halved until its keys and values fit into half of the machine's memory.
uint32_t DefaultContext(const ModelConfig& config, DType dtype) {
  uint32_t context = config.context_length;
  const uint64_t budget = PhysicalMemoryBytes() / 2;
  while (context > 512) {
    const auto bytes = KvCache::ReservedBytes(config, dtype, context);
    if (bytes.ok() && *bytes <= budget) break;
    context /= 2;
  }
  return context;
}

}  // namespace

Activations ActivationsOf(const EngineOptions& options) {
  return options.activation_bits == 8 ? Activations::k8Bits : Activations::k16Bits;
}

DType KvDType(KvType type) {
  switch (type) {
    case KvType::kF16:
      return DType::kF16;
    case KvType::kF32:
      return DType::kF32;
    case KvType::kQ8_0:
      return DType::kQ8_0;
  }
  return DType::kF16;
}

std::string_view KvTypeName(KvType type) {
  switch (type) {
    case KvType::kF16:
      return "f16";
    case KvType::kF32:
      return "f32";
    case KvType::kQ8_0:
      return "q8_0";
  }
  return "";
}

Result<uint64_t> KvBytesPerToken(KvType type, const ModelConfig& config) {
  const DTypeInfo& info = Info(KvDType(type));
  if (config.head_dim % info.block_elems != 0) {
    return MakeError(Code::kUnsupported, "KV cache: {} wants heads of a multiple of {} dims, the model has {}",
                     KvTypeName(type), info.block_elems, config.head_dim);
  }
  return KvCache::ReservedBytes(config, KvDType(type), 1);
}

Result<EngineOptions> FillDefaults(const EngineOptions& options, const ModelConfig& config) {
  EngineOptions filled = options;
  if (filled.n_threads == 0) filled.n_threads = CoreCount();
  if (filled.n_threads > kMaxThreads) {
    return MakeError(Code::kInvalidArgument, "threads: {} is too many, wanted 1..{}", filled.n_threads, kMaxThreads);
  }
  if (filled.activation_bits == 0) filled.activation_bits = options.npu.device.empty() ? 8 : 16;
  if (filled.activation_bits != 8 && filled.activation_bits != 16) {
    return MakeError(Code::kInvalidArgument, "activation bits: {}, wanted 8 or 16", filled.activation_bits);
  }
  NM_TRY(KvBytesPerToken(options.kv_type, config));
  if (filled.context_tokens == 0) filled.context_tokens = DefaultContext(config, KvDType(options.kv_type));
  if (filled.context_tokens > kMaxContext) {
    return MakeError(Code::kInvalidArgument, "context: {} tokens, wanted 1..{}", filled.context_tokens, kMaxContext);
  }
  if (filled.chunk_tokens == 0 || filled.chunk_tokens > kMaxChunkTokens) {
    return MakeError(Code::kInvalidArgument, "chunk: {} tokens, wanted 1..{}", filled.chunk_tokens, kMaxChunkTokens);
  }
  // Scratch grows with the chunk, and no chunk is longer than the context.
  filled.chunk_tokens = std::min(filled.chunk_tokens, filled.context_tokens);
  return filled;
}

}  // namespace npumoe
