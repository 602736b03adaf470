// SPDX-License-Identifier: Apache-2.0
#include "moe/attention_plan.h"

#include <algorithm>

#include "base/check.h"
#include "moe/layer_cost.h"
#include "moe/planner.h"
#include "moe/weight_format.h"

namespace npumoe {
namespace {

size_t KvDim(const ModelConfig& config) { return size_t{config.n_kv_heads} * config.head_dim; }
size_t QDim(const ModelConfig& config) { return size_t{config.n_heads} * config.head_dim; }

double ProjectionWeights(const ModelConfig& config, bool moe_layer) {
  const double dim = config.dim;
  return dim * static_cast<double>(2 * QDim(config) + 2 * KvDim(config)) + (moe_layer ? dim * config.n_experts : 0);
}

// Projections and both matrix products for `rows` positions that see `kv_length` more.
double Flops(const ModelConfig& config, bool moe_layer, double rows, double kv_length) {
  return 2 * rows * ProjectionWeights(config, moe_layer) +
         4 * rows * (kv_length + rows) * static_cast<double>(QDim(config));
}

}  // namespace

size_t AttentionWeightBytes(const ModelConfig& config, bool moe_layer, WeightFormat format) {
  const size_t dim = config.dim, q = QDim(config), kv = KvDim(config);
  size_t bytes = WeightBytes(format, q, dim) + 2 * WeightBytes(format, kv, dim) + WeightBytes(format, dim, q);
  if (moe_layer) bytes += WeightBytes(WeightFormat::kFp16, config.n_experts, dim);
  // Norms hold their gains twice (see BuildAttentionStage); biases once.
  return bytes + sizeof(uint16_t) * (2 * (2 * dim + q + kv) + 3 * dim + q + 2 * kv) + kGraphConstantBytes;
}

std::string AttentionMisfit(const ModelConfig& config, const NpuSpec& spec, uint32_t chunk_tokens,
                            WeightFormat format) {
  const auto over = [](std::string_view limit, size_t got, size_t allowed) {
    return got > allowed ? fmt::format("limit {} is {}, the stage has {}", limit, allowed, got) : std::string();
  };
  // An RMS norm runs over [x, -x], twice the channels.
  const size_t doubled = config.norm == NormKind::kRms ? 2 : 1, full = config.qk_norm == QkNorm::kFullWidth ? 2 : 1;
  const size_t channels =
      std::max({doubled * config.dim, full * QDim(config), full * KvDim(config), size_t{config.n_experts}});
  // Query heads that share a key head stand together in one matrix product.
  const size_t grouped_rows = size_t{config.n_heads} / config.n_kv_heads * chunk_tokens;
  for (const std::string& problem :
       {over("max_channels", channels, spec.max_channels), over("max_axis", grouped_rows, spec.max_axis),
        over("max_axis", size_t{2} * config.head_dim, spec.max_axis),
        over("max_matmul_axis", std::max<size_t>(grouped_rows, config.head_dim), spec.max_matmul_axis),
        over("max_program_weight_bytes", AttentionWeightBytes(config, true, format), spec.max_program_weight_bytes)}) {
    if (!problem.empty()) return problem;
  }
  return {};
}

std::vector<uint32_t> KvBuckets(const NpuSpec& spec, uint32_t chunk_tokens, uint32_t prompt_tokens, bool fine) {
  const uint64_t chunk = chunk_tokens, axis = std::min(spec.max_axis, spec.max_matmul_axis);
  std::vector<uint32_t> buckets{0};
  if (chunk == 0 || axis < 2 * chunk) return buckets;
  const uint64_t longest = std::min((prompt_tokens + chunk - 1) / chunk, axis / chunk - 1) * chunk;
  constexpr uint64_t kSteps = 8;
  const uint64_t step = (longest + kSteps * chunk - 1) / (kSteps * chunk) * chunk;
  for (uint64_t length = chunk; length < longest; length = fine && length >= step ? length + step : 2 * length) {
    buckets.push_back(static_cast<uint32_t>(length));
  }
  if (longest > 0) buckets.push_back(static_cast<uint32_t>(longest));
  return buckets;
}

double CpuAttentionSeconds(const ModelConfig& config, const NpuSpec& spec, bool moe_layer, double rows,
                           double position) {
  const double weight_bytes = ProjectionWeights(config, moe_layer) * kAssumedFileBytesPerWeight;
  return CpuExpertCost(1, Flops(config, moe_layer, rows, position), weight_bytes, spec).seconds;
}

AttentionCost ExpectedAttentionCost(const ModelConfig& config, const NpuSpec& spec, AttentionPlace place,
                                    bool moe_layer, uint32_t chunk_tokens, uint64_t first, uint64_t last,
                                    std::span<const uint32_t> kv_buckets, WeightFormat format) {
  constexpr double kHalf = 2;  // bytes of fp16
  AttentionCost total;
  const double chunk = chunk_tokens;
  for (uint64_t position = first; position < last; position += chunk_tokens) {
    const auto bucket = std::lower_bound(kv_buckets.begin(), kv_buckets.end(), position);
    if (place == AttentionPlace::kCpu || bucket == kv_buckets.end()) {
      const double rows = static_cast<double>(std::min<uint64_t>(chunk_tokens, last - position));
      total.cpu_seconds += CpuAttentionSeconds(config, spec, moe_layer, rows, static_cast<double>(position));
      continue;
    }
    const double length = *bucket, kv = static_cast<double>(KvDim(config));
    Work work;
    const WeightFormat streamed = StreamedFormat(format, spec);
    const auto project = [&](size_t out, size_t in, size_t times, WeightFormat stored) {
      AddProduct({chunk, static_cast<double>(in), static_cast<double>(out), static_cast<double>(times),
                  static_cast<double>(WeightBytes(stored, out, in))},
                 spec, work);
    };
    project(QDim(config), config.dim, 1, streamed);
    project(KvDim(config), config.dim, 2, streamed);
    project(config.dim, QDim(config), 1, streamed);
    if (moe_layer) project(config.n_experts, config.dim, 1, WeightFormat::kFp16);
    // Query heads that share a key head stand together in one product with the keys, then with the values.
    const double head_dim = config.head_dim, n_kv_heads = config.n_kv_heads, seen = length + chunk;
    const double grouped_rows = chunk * config.n_heads / n_kv_heads, key_bytes = kHalf * head_dim * seen;
    AddProduct({grouped_rows, head_dim, seen, n_kv_heads, key_bytes}, spec, work);
    AddProduct({grouped_rows, seen, head_dim, n_kv_heads, key_bytes}, spec, work);
    AddScores(config.n_heads * chunk * seen, spec, work);
    work.weight_bytes = static_cast<double>(AttentionWeightBytes(config, moe_layer, streamed));
    if (PaletteBits(streamed) > 0) work.unpacked_bytes = kHalf * ProjectionWeights(config, false);
    work.io_bytes = kHalf * (chunk * (2 * config.dim + 2 * kv + (moe_layer ? config.n_experts : 0) + config.rope_dim) +
                             chunk * (length + chunk) + 2 * kv * length);
    const Cost cost = DispatchCost(work, spec);
    total.npu_seconds += cost.seconds;
    total.joules += cost.joules;
  }
  total.joules += total.cpu_seconds * spec.cpu_watts.value;
  return total;
}

double AttentionCopySeconds(const ModelConfig& config, const NpuSpec& spec, double n_tokens) {
  constexpr double kHalf = 2;  // bytes of fp16
  const double values = 2.0 * config.dim + 2.0 * static_cast<double>(KvDim(config));
  return n_tokens * values * kHalf / spec.copy_bytes_per_second.value;
}

}  // namespace npumoe
