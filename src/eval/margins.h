// SPDX-License-Identifier: Apache-2.0
// Margins of choices: what one candidate is ahead of another by.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "npumoe/eval.h"

namespace npumoe {

// The largest of scores, of equals the first, and what it is ahead of the next by: infinite where there is no next.
struct TopChoice {
  size_t best = 0;
  double margin = 0;
};
TopChoice FindTop(std::span<const float> scores);
TopChoice FindTop(std::span<const double> scores);

// lost: of the choices that changed, what the exact run's was ahead of the other by; next: of every choice of the exact
// run, what it was ahead of its next by.
Margins SummarizeMargins(std::vector<double> lost, std::span<const double> next);

}  // namespace npumoe
