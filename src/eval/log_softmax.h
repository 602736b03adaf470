// SPDX-License-Identifier: Apache-2.0
// Log-probabilities from logits, in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

namespace npumoe {

// log(sum(exp(logits))): what a logit exceeds its log-probability by.
inline double LogSumExp(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return top + std::log(sum);
}

}  // namespace npumoe
