// SPDX-License-Identifier: Apache-2.0
#include "report/scatter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/svg.h"

namespace npumoe {
namespace {

constexpr double kPlotWidth = 545, kPlotHeight = 400, kPlotLeft = 54, kPlotRight = 14, kPlotTop = 44, kPlotBottom = 48;  // pixels

// A logarithmic axis from pixel `from` to pixel `to`.
struct Axis {
  double low = 0, high = 0, from = 0, to = 0;

  static Axis Over(double least, double most, double from, double to) {
    const double margin = std::max(0.03, 0.06 * std::log10(most / least));
    return {std::log10(least) - margin, std::log10(most) + margin, from, to};
  }
  double At(double value) const { return from + (std::log10(value) - low) / (high - low) * (to - from); }
  // 1, 2 and 5 times powers of ten within; finer where they are fewer than three.
  std::vector<double> Marks() const {
    std::vector<double> marks;
    for (const auto& factors : {std::vector<double>{1, 2, 5}, std::vector<double>{1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9}}) {
      marks.clear();
      for (int power = static_cast<int>(std::floor(low)); power <= high; ++power) {
        for (const double factor : factors) {
          const double value = factor * std::pow(10, power);
          if (std::log10(value) >= low && std::log10(value) <= high) marks.push_back(value);
        }
      }
      if (marks.size() >= 3) break;
    }
    return marks;
  }
};

void DrawFront(Svg& svg, const std::vector<ScatterPoint>& points, bool exact_only, const Axis& x, const Axis& y) {
  std::string path;
  for (const size_t i : ParetoFront(points, exact_only)) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x.At(points[i].seconds), y.At(points[i].joules));
  }
  if (!path.empty()) svg.Path(path, exact_only ? "front" : "front dashed");
}

void DrawAxes(Svg& svg, const Axis& x, const Axis& y) {
  for (const double mark : x.Marks()) {
    svg.Line(x.At(mark), kPlotTop, x.At(mark), kPlotHeight - kPlotBottom, "grid");
    svg.Text(x.At(mark), kPlotHeight - kPlotBottom + 15, fmt::format("{:g}", mark), "s m");
  }
  for (const double mark : y.Marks()) {
    svg.Line(kPlotLeft, y.At(mark), kPlotWidth - kPlotRight, y.At(mark), "grid");
    svg.Text(kPlotLeft - 6, y.At(mark) + 4, fmt::format("{:g}", mark), "s e");
  }
  svg.Text(kPlotWidth - kPlotRight, kPlotHeight - 14, "TTFT in seconds", "s e");
  svg.Text(kPlotLeft, kPlotTop - 5, "mJ per prompt token", "s");
}

}  // namespace

std::vector<size_t> ParetoFront(const std::vector<ScatterPoint>& points, bool exact_only) {
  std::vector<size_t> order;
  for (size_t i = 0; i < points.size(); ++i) {
    if (points[i].exact || !exact_only) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return points[a].seconds != points[b].seconds ? points[a].seconds < points[b].seconds
                                                  : points[a].joules < points[b].joules;
  });
  std::vector<size_t> front;
  double least = std::numeric_limits<double>::infinity();
  for (const size_t i : order) {
    if (points[i].joules >= least) continue;
    least = points[i].joules;
    front.push_back(i);
  }
  return front;
}

std::string DrawScatter(const std::vector<ScatterPoint>& points, std::string_view title) {
  Svg svg(static_cast<int>(kPlotWidth), static_cast<int>(kPlotHeight), title);
  svg.Text(0, 14, title, "h");
  if (points.empty()) return std::move(svg).Take();
  ScatterPoint least = points[0], most = points[0];
  for (const ScatterPoint& p : points) {
    least.seconds = std::min(least.seconds, p.seconds), most.seconds = std::max(most.seconds, p.seconds);
    least.joules = std::min(least.joules, p.joules), most.joules = std::max(most.joules, p.joules);
  }
  const Axis x = Axis::Over(least.seconds, most.seconds, kPlotLeft, kPlotWidth - kPlotRight);
  const Axis y = Axis::Over(1e3 * least.joules, 1e3 * most.joules, kPlotHeight - kPlotBottom, kPlotTop);
  std::vector<ScatterPoint> drawn = points;
  for (ScatterPoint& p : drawn) p.joules *= 1e3;
  DrawAxes(svg, x, y);
  DrawFront(svg, drawn, false, x, y);
  DrawFront(svg, drawn, true, x, y);
  for (const ScatterPoint& p : drawn) {
    svg.Circle(x.At(p.seconds), y.At(p.joules), p.hollow ? 4 : 5, p.colour + (p.hollow ? " hollow" : " solid"),
               p.hover);
  }
  const std::vector<size_t> front = ParetoFront(drawn, true);
  std::string label;  // of points too near to each other for a label each
  for (size_t i = 0; i < front.size(); ++i) {
    const double at_x = x.At(drawn[front[i]].seconds), at_y = y.At(drawn[front[i]].joules);
    label += fmt::format("{}{}", label.empty() ? "" : ", ", i + 1);
    const bool last = i + 1 == front.size();
    if (!last && std::abs(x.At(drawn[front[i + 1]].seconds) - at_x) < 16 &&
        std::abs(y.At(drawn[front[i + 1]].joules) - at_y) < 14) {
      continue;
    }
    svg.Text(at_x - 9, at_y + 16, label, "h e");
    label.clear();
  }
  return std::move(svg).Take();
}

}  // namespace npumoe
