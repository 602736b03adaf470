// SPDX-License-Identifier: Apache-2.0
#include "eval/margins.h"

#include <algorithm>
#include <limits>

namespace npumoe {
namespace {

template <typename T>
TopChoice TopOf(std::span<const T> scores) {
  TopChoice top;
  if (scores.empty()) return top;
  double next = -std::numeric_limits<double>::infinity();
  for (size_t i = 1; i < scores.size(); ++i) {
    const bool leads = scores[i] > scores[top.best];
    next = std::max<double>(next, leads ? scores[top.best] : scores[i]);
    if (leads) top.best = i;
  }
  top.margin = scores[top.best] - next;
  return top;
}

}  // namespace

TopChoice FindTop(std::span<const float> scores) { return TopOf(scores); }
TopChoice FindTop(std::span<const double> scores) { return TopOf(scores); }

Margins SummarizeMargins(std::vector<double> lost, std::span<const double> next) {
  Margins margins;
  margins.n_changed = lost.size();
  if (lost.empty()) return margins;
  std::sort(lost.begin(), lost.end());
  margins.median = lost[lost.size() / 2];
  margins.widest = lost.back();
  margins.n_as_close = static_cast<uint64_t>(
      std::count_if(next.begin(), next.end(), [&](double margin) { return margin <= margins.widest; }));
  return margins;
}

}  // namespace npumoe
