// SPDX-License-Identifier: Apache-2.0
// Rows and columns of small bar charts with lying bars and their numbers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace npumoe {

struct Bar {
  std::string label;
  double value = 0, deviation = 0;
  std::string text;         // behind the bar: the number
  std::string note;         // after it, in a paler colour: what is no number of the simulation, and says so
  std::string colour;       // a class, see ColourOf
  bool gap_before = false;  // begins a new part
};

struct BarPanel {
  std::string title, unit;
  std::vector<Bar> bars;
  double low = 0, high = 0;  // of a shaded published range; equal = none
  double at_least = 0;       // the axis reaches this at least
};

// panels[row][column]; all rows have as many columns.
std::string DrawBars(const std::vector<std::vector<BarPanel>>& panels, std::string_view title);

}  // namespace npumoe
