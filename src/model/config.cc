// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "base/check.h"

namespace npumoe {
namespace {

struct Bound {
  const char* name;
  uint32_t value;
  uint32_t min, max;
};

Status CheckBounds(std::span<const Bound> bounds, std::string_view name) {
  for (const Bound& bound : bounds) {
    if (bound.value < bound.min) {
      return MakeError(Code::kCorruptFile, "{}: {} is {}, wanted at least {}", name, bound.name, bound.value,
                       bound.min);
    }
    if (bound.value > bound.max) {
      return MakeError(Code::kUnsupported, "{}: {} is {}, limit {}", name, bound.name, bound.value, bound.max);
    }
  }
  return Ok{};
}

Status ValidateAttention(const ModelConfig& config, std::string_view name) {
  if (config.n_heads % config.n_kv_heads != 0) {
    return MakeError(Code::kCorruptFile, "{}: {} attention heads are not a multiple of {} key/value heads", name,
                     config.n_heads, config.n_kv_heads);
  }
  // Both are within kMaxHeads and kMaxDim, so the product fits 64 bits.
  const uint64_t q_dim = uint64_t{config.n_heads} * config.head_dim;
  if (q_dim > kMaxDim) {
    return MakeError(Code::kUnsupported, "{}: {} heads of {} values are {} wide, limit {}", name, config.n_heads,
                     config.head_dim, q_dim, kMaxDim);
  }
  if (config.rope_dim % 2 != 0) {
    return MakeError(Code::kCorruptFile, "{}: rope dimension is {}, wanted an even number", name, config.rope_dim);
  }
  return Ok{};
}

Status ValidateRope(const ModelConfig& config, std::string_view name) {
  if (!std::isfinite(config.rope_theta) || config.rope_theta <= 1.0) {
    return MakeError(Code::kCorruptFile, "{}: rope theta is {}, wanted a number above 1", name, config.rope_theta);
  }
  for (const auto* factors : {&config.rope_short_factors, &config.rope_long_factors}) {
    if (!factors->empty() && factors->size() != config.rope_dim / 2) {
      return MakeError(Code::kCorruptFile, "{}: {} rope factors, wanted {} (half of the rope dimension)", name,
                       factors->size(), config.rope_dim / 2);
    }
    for (const float factor : *factors) {
      if (!std::isfinite(factor) || factor <= 0.0f) {
        return MakeError(Code::kCorruptFile, "{}: rope factor {}, wanted a number above 0", name, factor);
      }
    }
  }
  for (const float scale : {config.rope_short_scale, config.rope_long_scale}) {
    if (!std::isfinite(scale) || scale <= 0.0f) {
      return MakeError(Code::kCorruptFile, "{}: rope attention factor {}, wanted a number above 0", name, scale);
    }
  }
  return Ok{};
}

Status ValidateExperts(const ModelConfig& config, std::string_view name) {
  NM_TRY(CheckBounds(std::array{Bound{"expert count", config.n_experts, 1, kMaxExperts},
                                Bound{"expert width", config.expert_dim, 1, kMaxDim},
                                Bound{"shared expert width", config.shared_expert_dim, 0, kMaxDim}},
                     name));
  if (config.top_k < 1 || config.top_k > config.n_experts) {
    return MakeError(Code::kCorruptFile, "{}: {} experts per token, wanted 1 to {} (the expert count)", name,
                     config.top_k, config.n_experts);
  }
  // Both are within their own caps, so the product fits 32 bits.
  if (config.n_experts * config.n_layers > kMaxTotalExperts) {
    return MakeError(Code::kUnsupported, "{}: {} layers of {} experts are {}, limit {}", name, config.n_layers,
                     config.n_experts, config.n_experts * config.n_layers, kMaxTotalExperts);
  }
  if (config.dense_layer.size() != config.n_layers) {
    return MakeError(Code::kCorruptFile, "{}: {} layers say whether they are dense, wanted {}", name,
                     config.dense_layer.size(), config.n_layers);
  }
  if (config.router == RouterRule::kSparseMixer) {
    // The published rule is defined for two winners only.
    if (config.top_k != 2) {
      return MakeError(Code::kUnsupported, "{}: sparsemixer routing with {} experts per token, wanted 2", name,
                       config.top_k);
    }
    if (!(config.router_jitter >= 0.0f && config.router_jitter <= 1.0f)) {
      return MakeError(Code::kCorruptFile, "{}: router jitter is {}, wanted 0 to 1", name, config.router_jitter);
    }
  }
  return Ok{};
}

}  // namespace

Status Validate(const ModelConfig& config, std::string_view name) {
  NM_TRY(CheckBounds(
      std::array{Bound{"vocabulary size", config.vocab_size, 1, kMaxVocab},
                 Bound{"context length", config.context_length, 1, kMaxContext},
                 Bound{"model width", config.dim, 1, kMaxDim}, Bound{"layer count", config.n_layers, 1, kMaxLayers},
                 Bound{"attention head count", config.n_heads, 1, kMaxHeads},
                 Bound{"key/value head count", config.n_kv_heads, 1, kMaxHeads},
                 Bound{"head width", config.head_dim, 2, kMaxDim},
                 Bound{"rope dimension", config.rope_dim, 2, config.head_dim},
                 Bound{"dense feed-forward width", config.ffn_dim, 0, kMaxDim}},
      name));
  if (!std::isfinite(config.norm_eps) || config.norm_eps <= 0.0f || config.norm_eps >= 1.0f) {
    return MakeError(Code::kCorruptFile, "{}: norm epsilon is {}, wanted a number between 0 and 1", name,
                     config.norm_eps);
  }
  NM_TRY(ValidateAttention(config, name));
  NM_TRY(ValidateRope(config, name));
  if (config.n_experts > 0) NM_TRY(ValidateExperts(config, name));
  const bool has_dense_layer = config.n_experts == 0 || std::find(config.dense_layer.begin(), config.dense_layer.end(),
                                                                  true) != config.dense_layer.end();
  if (has_dense_layer && config.ffn_dim == 0) {
    return MakeError(Code::kCorruptFile, "{}: dense feed-forward width is 0, wanted at least 1", name);
  }
  return Ok{};
}

}  // namespace npumoe
