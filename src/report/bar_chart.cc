// SPDX-License-Identifier: Apache-2.0
#include "report/bar_chart.h"

#include <algorithm>

#include "report/svg.h"

namespace npumoe {
namespace {

constexpr double kBarHeight = 15, kBarPitch = 20, kPartGap = 9;  // pixels
constexpr double kTitleHeight = 30, kAxisHeight = 38, kRowGap = 14;
constexpr double kPanelGap = 28, kMaxWidth = 1120;
constexpr double kLetter = 6.6;  // width of a mean letter of 12 pixels, rather too much

double WidthOf(std::string_view text) { return kLetter * static_cast<double>(text.size()); }

double HeightOf(const BarPanel& panel) {
  double height = kTitleHeight + kAxisHeight;
  for (const Bar& bar : panel.bars) height += kBarPitch + (bar.gap_before ? kPartGap : 0);
  return height;
}

// Draws one panel into `width` pixels from (left, top) on.
class Panel {
 public:
  Panel(Svg& svg, const BarPanel& panel, double left, double top, double width)
      : svg_(svg), panel_(panel), left_(left), top_(top) {
    double labels = 0, texts = 0;
    max_ = std::max(panel.at_least, panel.high);
    for (const Bar& bar : panel.bars) {
      labels = std::max(labels, WidthOf(bar.label));
      texts = std::max(texts, WidthOf(bar.text) + (bar.note.empty() ? 0 : 8 + WidthOf(bar.note)));
      max_ = std::max(max_, bar.value);
    }
    if (!(max_ > 0)) max_ = 1;
    origin_ = left + labels + 8;
    scale_ = std::max(40.0, left + width - origin_ - texts - 8) / max_;
  }

  void Draw() {
    svg_.Text(left_, top_ + 16, panel_.title, "h");
    const double top = top_ + kTitleHeight, bottom = top_ + HeightOf(panel_) - kAxisHeight;
    if (panel_.high > panel_.low) {
      svg_.Rect(X(panel_.low), top - 2, X(panel_.high) - X(panel_.low), bottom - top + 2, "published");
      svg_.Text(X((panel_.low + panel_.high) / 2), top - 6, "published", "s m");
    }
    const double step = NiceStep(max_, std::max(2, static_cast<int>(max_ * scale_ / 55)));
    for (int i = 0; i * step <= max_ * (1 + 1e-9); ++i) {
      svg_.Line(X(i * step), top - 2, X(i * step), bottom, i == 0 ? "axis" : "grid");
      svg_.Text(X(i * step), bottom + 14, fmt::format("{:g}", i * step), "s m");
    }
    svg_.Text(origin_, bottom + 29, panel_.unit, "s");
    double y = top;
    for (const Bar& bar : panel_.bars) {
      if (bar.gap_before) y += kPartGap;
      DrawBar(bar, y);
      y += kBarPitch;
    }
  }

 private:
  double X(double value) const { return origin_ + value * scale_; }

  void DrawBar(const Bar& bar, double y) {
    const double middle = y + kBarHeight / 2, end = X(bar.value);
    svg_.Text(origin_ - 8, middle + 4, bar.label, "e");
    svg_.Rect(origin_, y, end - origin_, kBarHeight, bar.colour, bar.label + ": " + bar.text);
    double x = end + 5;
    if (bar.deviation * scale_ >= 1) {  // else it would not be seen
      svg_.Line(X(bar.value - bar.deviation), middle, X(bar.value + bar.deviation), middle, "axis");
      x += bar.deviation * scale_;
    }
    svg_.Text(x, middle + 4, bar.text);
    if (!bar.note.empty()) svg_.Text(x + WidthOf(bar.text) + 4, middle + 4, bar.note, "s");
  }

  Svg& svg_;
  const BarPanel& panel_;
  const double left_, top_;
  double origin_ = 0, scale_ = 0, max_ = 0;
};

}  // namespace

std::string DrawBars(const std::vector<std::vector<BarPanel>>& panels, std::string_view title) {
  std::vector<double> heights;
  double height = 0;
  for (const auto& row : panels) {
    double tallest = 0;
    for (const BarPanel& panel : row) tallest = std::max(tallest, HeightOf(panel));
    heights.push_back(tallest);
    height += tallest + kRowGap;
  }
  Svg svg(static_cast<int>(kMaxWidth), static_cast<int>(height), title);
  double top = 0;
  for (size_t row = 0; row < panels.size(); ++row) {
    const double n = static_cast<double>(panels[row].size());
    const double width = (kMaxWidth - (n - 1) * kPanelGap) / n;
    for (size_t column = 0; column < panels[row].size(); ++column) {
      const double left = static_cast<double>(column) * (width + kPanelGap);
      Panel(svg, panels[row][column], left, top, width).Draw();
    }
    top += heights[row] + kRowGap;
  }
  return std::move(svg).Take();
}

}  // namespace npumoe
