// SPDX-License-Identifier: Apache-2.0
// Plans by time and energy, with the fronts of those that no other beats in both.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace npumoe {

struct ScatterPoint {
  double seconds = 0, joules = 0;
  std::string hover;
  std::string colour;   // a class, see ColourOf
  bool exact = true;    // drops nothing
  bool hollow = false;  // the weight format beside the asked one
};

// Indices of the points that none is below in one and at most equal in the other, by rising seconds. With `exact_only`
// points that drop assignments do not exist.
std::vector<size_t> ParetoFront(const std::vector<ScatterPoint>& points, bool exact_only);

// Both axes are logarithmic. The front of exact plans is solid with its points numbered from 1, that of all plans
// dashed.
std::string DrawScatter(const std::vector<ScatterPoint>& points, std::string_view title);

}  // namespace npumoe
