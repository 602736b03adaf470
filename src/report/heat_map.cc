// SPDX-License-Identifier: Apache-2.0
#include "report/heat_map.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "report/svg.h"

namespace npumoe {
namespace {

constexpr double kLeft = 34, kTop = 40, kBottom = 76, kGridWidth = 320;  // pixels
constexpr double kBox = 22;                                              // of the legend
constexpr int kStepsEachWay = 6;                                         // half octaves below and above the mean
constexpr int kUnused = -1;

struct LegendMark {
  std::string colour, text;  // an empty text: only the box
};

// Cells of one colour become one path: a map of 48 x 128 stays below 100 KB.
std::string DrawCells(const std::vector<std::vector<int>>& colours, std::string_view letter,
                      const std::vector<LegendMark>& legend, std::string_view title, std::string_view legend_title,
                      double legend_gap) {
  size_t n_experts = 1;
  int n_colours = 0;
  for (const auto& row : colours) {
    n_experts = std::max(n_experts, row.size());
    for (const int colour : row) n_colours = std::max(n_colours, colour + 1);
  }
  const double cell = kGridWidth / static_cast<double>(n_experts);
  const double row_height = std::clamp(336.0 / std::max<double>(1, static_cast<double>(colours.size())), 3.0, 14.0);
  const double bottom = kTop + row_height * static_cast<double>(colours.size());
  Svg svg(static_cast<int>(kLeft + kGridWidth + 8), static_cast<int>(bottom + kBottom), title);
  std::vector<std::string> paths(static_cast<size_t>(n_colours));
  for (size_t layer = 0; layer < colours.size(); ++layer) {
    const auto& row = colours[layer];
    for (size_t expert = 0; expert < row.size();) {
      size_t end = expert + 1;  // neighbours of one colour are one rectangle
      while (end < row.size() && row[end] == row[expert]) ++end;
      if (row[expert] != kUnused) {
        const double width = cell * static_cast<double>(end - expert);
        fmt::format_to(std::back_inserter(paths[static_cast<size_t>(row[expert])]),
                       "M{:.2f} {:.2f}h{:.2f}v{:.2f}h-{:.2f}z", kLeft + cell * static_cast<double>(expert),
                       kTop + row_height * static_cast<double>(layer), width, row_height, width);
      }
      expert = end;
    }
  }
  svg.Text(0, 14, title, "h");
  for (size_t colour = 0; colour < paths.size(); ++colour) {
    if (!paths[colour].empty()) svg.Path(paths[colour], fmt::format("{}{}", letter, colour));
  }
  const size_t layer_step = static_cast<size_t>(std::max(1.0, NiceStep(14.0 / row_height, 1)));
  for (size_t layer = 0; layer < colours.size(); layer += layer_step) {
    const double y = kTop + row_height * (static_cast<double>(layer) + 0.5);
    svg.Text(kLeft - 6, y + 4, fmt::format("{}", layer), "s e");
  }
  const size_t expert_step = static_cast<size_t>(std::max(1.0, NiceStep(26.0 / cell, 1)));
  for (size_t expert = 0; expert < n_experts; expert += expert_step) {
    svg.Text(kLeft + cell * (static_cast<double>(expert) + 0.5), bottom + 14, fmt::format("{}", expert), "s m");
  }
  svg.Text(kLeft - 6, kTop - 6, "layer", "s e");
  svg.Text(kLeft + kGridWidth, bottom + 28, "expert", "s e");
  svg.Text(kLeft, bottom + 38, legend_title, "s");
  double x = kLeft;
  for (const LegendMark& mark : legend) {
    svg.Rect(x, bottom + 44, kBox, 11, mark.colour);
    if (!mark.text.empty()) svg.Text(x + kBox / 2, bottom + 67, mark.text, "s m");
    x += kBox + legend_gap;
  }
  return std::move(svg).Take();
}

}  // namespace

std::string DrawPopularity(const std::vector<std::vector<double>>& shares, std::string_view title) {
  std::vector<std::vector<int>> colours;
  for (const auto& row : shares) {
    std::vector<int>& out = colours.emplace_back();
    double total = 0;
    for (const double share : row) total += share;
    for (const double share : row) {
      const double over_mean = total > 0 ? share * static_cast<double>(row.size()) / total : 0;
      const double halves = over_mean > 0 ? std::round(2 * std::log2(over_mean)) : -kStepsEachWay;
      out.push_back(static_cast<int>(std::clamp<double>(halves, -kStepsEachWay, kStepsEachWay)) + kStepsEachWay);
    }
  }
  std::vector<LegendMark> legend;
  constexpr const char* kTexts[] = {"1/8", "", "1/4", "", "1/2", "", "1", "", "2", "", "4", "", "8"};
  for (int i = 0; i <= 2 * kStepsEachWay; ++i) legend.push_back({fmt::format("c{}", i), kTexts[i]});
  return DrawCells(colours, "c", legend, title, "tokens of an expert over the mean of its layer", 0);
}

std::string DrawTiers(const std::vector<std::vector<uint32_t>>& capacities, std::string_view title) {
  // Colour 1 is up to 32 rows, each further one twice as many, the last everything above.
  constexpr int kFirst = 5, kLast = 8;  // 32 = 2^5; eight colours
  std::vector<std::vector<int>> colours;
  for (const auto& row : capacities) {
    std::vector<int>& out = colours.emplace_back();
    for (const uint32_t capacity : row) {
      const int octave = capacity == 0 ? 0 : static_cast<int>(std::bit_width(capacity - 1)) - kFirst + 1;
      out.push_back(capacity == 0 ? 0 : std::clamp(octave, 1, kLast));
    }
  }
  std::vector<LegendMark> legend{{"t0", "CPU"}};
  for (int i = 1; i <= kLast; ++i) {
    legend.push_back({fmt::format("t{}", i), i == kLast ? "more" : fmt::format("{}", 1u << (kFirst + i - 1))});
  }
  return DrawCells(colours, "t", legend, title, "largest capacity of an expert, up to so many rows", 12);
}

}  // namespace npumoe
