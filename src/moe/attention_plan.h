// SPDX-License-Identifier: Apache-2.0
// Attention stages in a plan: whether they fit the NPU, for which cache lengths they are compiled, what they cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "moe/plan.h"
#include "npu/cost.h"
#include "npu/spec.h"

namespace npumoe {

// Small constants (axes, strides, flags, scales) of a graph that count as its weights too; generous.
inline constexpr size_t kGraphConstantBytes = 16 * 1024;

size_t AttentionWeightBytes(const ModelConfig& config, bool moe_layer, WeightFormat format);

// Why the stage breaks a limit of the spec even with an empty cache, naming the limit; empty when it fits.
std::string AttentionMisfit(const ModelConfig& config, const NpuSpec& spec, uint32_t chunk_tokens, WeightFormat format);

// Lengths of the cache that attention is compiled for: 0 and chunk_tokens doubled up to the prompt's length, cut where
// cache and chunk together reach an axis limit. With `fine`, lengths above an eighth of the longest are a step of about
// that much apart instead: a chunk then computes little more than what it sees, for a few functions more that share
// the weights.
std::vector<uint32_t> KvBuckets(const NpuSpec& spec, uint32_t chunk_tokens, uint32_t prompt_tokens, bool fine = false);

// One layer's attention over `rows` positions on the CPU, `position` earlier ones in the cache, and its router.
double CpuAttentionSeconds(const ModelConfig& config, const NpuSpec& spec, bool moe_layer, double rows,
                           double position);

// One layer's attention over the positions [first, last), chunk by chunk: on the NPU in the smallest buckets (a chunk
// beyond the last on the CPU), or all on the CPU.
struct AttentionCost {
  double npu_seconds = 0, cpu_seconds = 0, joules = 0;
  double Seconds() const { return npu_seconds + cpu_seconds; }  // one after the other
};
AttentionCost ExpectedAttentionCost(const ModelConfig& config, const NpuSpec& spec, AttentionPlace place,
                                    bool moe_layer, uint32_t chunk_tokens, uint64_t first, uint64_t last,
                                    std::span<const uint32_t> kv_buckets, WeightFormat format);

// Seconds of the CPU in which inputs and outputs of attention on the NPU cross between f32 and fp16.
double AttentionCopySeconds(const ModelConfig& config, const NpuSpec& spec, double n_tokens);

}  // namespace npumoe
