// SPDX-License-Identifier: Apache-2.0
#include "eval/share.h"

#include <algorithm>
#include <cmath>

namespace npumoe {
namespace {

constexpr double kZ = 1.959964;  // the normal quantile of 97.5 %

}  // namespace

Share WilsonShare(uint64_t n_right, uint64_t n) {
  if (n == 0) return {};
  const auto count = static_cast<double>(n);
  const double p = static_cast<double>(n_right) / count, z2 = kZ * kZ;
  const double middle = (p + z2 / (2 * count)) / (1 + z2 / count);
  const double half = kZ / (1 + z2 / count) * std::sqrt(p * (1 - p) / count + z2 / (4 * count * count));
  return {p, n_right == 0 ? 0 : std::max(0.0, middle - half), n_right == n ? 1 : std::min(1.0, middle + half), n};
}

Share MeanShare(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  if (values.empty()) return {};
  double right = 0, squares = 0;
  for (const double value : values) right += value;
  for (const double value : values) squares += value * value;
  // Shares between 0 and 1 spread less than yes and no of the same mean: as if so many more items had been asked.
  const double mean = right / n, spread = squares / n - mean * mean, largest = mean * (1 - mean);
  const double z2 = kZ * kZ, effect = largest > 0 ? std::clamp(spread / largest, 1 / n, 1.0) : 1.0;
  const double count = n / effect;
  const double middle = (mean + z2 / (2 * count)) / (1 + z2 / count);
  const double half = kZ / (1 + z2 / count) * std::sqrt(largest / count + z2 / (4 * count * count));
  return {mean, std::max(0.0, middle - half), std::min(1.0, middle + half), values.size()};
}

}  // namespace npumoe
