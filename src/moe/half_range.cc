// SPDX-License-Identifier: Apache-2.0
#include "moe/half_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "moe/plan.h"

namespace npumoe {

std::string AttentionDanger(const ActivationRange& range) {
  const std::pair<std::string_view, float> ranges[] = {{"residual", range.residual},
                                                       {"attention_in", range.attention_in},
                                                       {"q", range.q},
                                                       {"k", range.k},
                                                       {"v", range.v},
                                                       {"attention_out", range.attention_out}};
  for (const auto& [name, value] : ranges) {
    if (!(value < kSafeF16)) return fmt::format("{} reached {:.6g}, fp16 is safe below {}", name, value, kSafeF16);
  }
  return {};
}

std::string ScaleOrDanger(const ActivationRange& range, float& scale) {
  scale = 1;
  // The gate goes through silu and the input is the router's too: neither can be scaled.
  if (!(range.ffn_in < kSafeF16)) return fmt::format("ffn_in reached {:.6g}", range.ffn_in);
  if (!(range.gate < kSafeF16)) return fmt::format("gate reached {:.6g}", range.gate);
  const float top = std::max({range.up, range.hidden, range.expert_out});
  while (!(top / scale < kSafeF16)) {
    scale *= 2;
    if (scale > kMaxExpertScale) {
      scale = 1;
      return fmt::format("expert values reached {:.6g}", top);
    }
  }
  return {};
}

}  // namespace npumoe
