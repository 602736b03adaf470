// SPDX-License-Identifier: Apache-2.0
// A drawing in SVG. Colours and fonts are classes that the page's style sheet defines, so that one sheet serves light
// and dark; coordinates are pixels from the upper left.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace npumoe {

class Svg {
 public:
  // `title` is what a screen reader says.
  Svg(int width, int height, std::string_view title);

  // `classes` are our own words, and are not escaped; all other text is. An empty `hover` shows none.
  void Rect(double x, double y, double width, double height, std::string_view classes, std::string_view hover = {});
  void Line(double x1, double y1, double x2, double y2, std::string_view classes);
  void Text(double x, double y, std::string_view text, std::string_view classes = {});
  void Circle(double x, double y, double radius, std::string_view classes, std::string_view hover = {});
  void Path(std::string_view commands, std::string_view classes);

  std::string Take() &&;

 private:
  template <typename... Args>
  void Put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  void Close(std::string_view tag, std::string_view hover);

  std::string out_;
};

// The class of a placement's colour, by the palette of Okabe and Ito, which the colour-blind can tell apart.
std::string_view ColourOf(std::string_view placement);
// A box of colour and its placement, one below the other.
std::string DrawColours(const std::vector<std::string_view>& placements);
// Rules of all classes that drawings use.
std::string_view DrawingStyle();

// A step of 1, 2 or 5 times a power of ten that divides `range` into at most `n_steps` parts. Both above 0.
double NiceStep(double range, int n_steps);
// Three significant digits without exponent: "48.97" is 49.0, "0.1234" 0.123.
std::string ThreeDigits(double value);

}  // namespace npumoe
