// SPDX-License-Identifier: Apache-2.0
#include "report/svg.h"

#include <algorithm>
#include <cmath>

#include "format/markup.h"

namespace npumoe {

Svg::Svg(int width, int height, std::string_view title) {
  const std::string name = EscapedMarkup(title, 300);
  Put("<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "aria-label=\"{2}\">\n<title>{2}</title>\n",
      width, height, name);
}

void Svg::Close(std::string_view tag, std::string_view hover) {
  if (hover.empty()) {
    out_ += "/>\n";
  } else {
    Put("><title>{}</title></{}>\n", EscapedMarkup(hover, 300), tag);
  }
}

void Svg::Rect(double x, double y, double width, double height, std::string_view classes, std::string_view hover) {
  Put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" class=\"{}\"", x, y, std::max(width, 0.0),
      height, classes);
  Close("rect", hover);
}

void Svg::Line(double x1, double y1, double x2, double y2, std::string_view classes) {
  Put("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1, x2, y2, classes);
}

void Svg::Text(double x, double y, std::string_view text, std::string_view classes) {
  Put("<text x=\"{:.1f}\" y=\"{:.1f}\"", x, y);
  if (!classes.empty()) Put(" class=\"{}\"", classes);
  Put(">{}</text>\n", EscapedMarkup(text, 300));
}

void Svg::Circle(double x, double y, double radius, std::string_view classes, std::string_view hover) {
  Put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" class=\"{}\"", x, y, radius, classes);
  Close("circle", hover);
}

void Svg::Path(std::string_view commands, std::string_view classes) {
  Put("<path d=\"{}\" class=\"{}\"/>\n", commands, classes);
}

std::string Svg::Take() && {
  out_ += "</svg>\n";
  return std::move(out_);
}

std::string_view ColourOf(std::string_view placement) {
  if (placement == "cpu") return "grey";
  if (placement == "naive") return "vermilion";
  if (placement == "anemll") return "orange";
  if (placement == "base") return "purple";
  if (placement == "tiers") return "yellow";
  if (placement == "tiers+groups") return "sky";
  if (placement == "all") return "blue";
  return "green";
}

std::string DrawColours(const std::vector<std::string_view>& placements) {
  constexpr double kPitch = 22;  // pixels
  Svg svg(150, static_cast<int>(28 + kPitch * static_cast<double>(placements.size())), "Colours of the placements");
  double y = 28;
  for (const std::string_view placement : placements) {
    svg.Circle(8, y + 6, 6, std::string(ColourOf(placement)) + " solid");
    svg.Text(22, y + 10, placement);
    y += kPitch;
  }
  return std::move(svg).Take();
}

std::string_view DrawingStyle() {
  return R"(svg{display:block;max-width:100%;height:auto}
svg text{font:12px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;fill:var(--ink)}
svg .e{text-anchor:end}
svg .m{text-anchor:middle}
svg text.h{font-weight:600;font-size:13px}
svg text.s{fill:var(--soft);font-size:11px}
svg .axis{stroke:var(--soft);stroke-width:1}
svg .grid{stroke:var(--line);stroke-width:1}
svg .front{fill:none;stroke:var(--ink);stroke-width:1.5}
svg .dashed{stroke-dasharray:5 4}
svg .published{fill:var(--band)}
svg path{shape-rendering:crispEdges}
svg path.front{shape-rendering:auto}
svg .hollow{fill:var(--page);stroke-width:2.5}
svg .solid{stroke:var(--page);stroke-width:.7}
.grey{fill:#8c8c8c;stroke:#8c8c8c}
.vermilion{fill:#d55e00;stroke:#d55e00}
.orange{fill:#e69f00;stroke:#e69f00}
.purple{fill:#cc79a7;stroke:#cc79a7}
.yellow{fill:#d8c92f;stroke:#d8c92f}
.sky{fill:#56b4e9;stroke:#56b4e9}
.blue{fill:#0072b2;stroke:#0072b2}
.green{fill:#009e73;stroke:#009e73}
rect.grey,rect.vermilion,rect.orange,rect.purple,rect.yellow,rect.sky,rect.blue,rect.green{stroke:none}
.c0{fill:#0b3c6f}.c1{fill:#1a5a9a}.c2{fill:#3a7fbd}.c3{fill:#6aa5d5}.c4{fill:#9cc6e6}.c5{fill:#cbe0f0}.c6{fill:#f4f1ec}
.c7{fill:#fbdcc4}.c8{fill:#f7b98f}.c9{fill:#ee8f5e}.c10{fill:#dc6138}.c11{fill:#b93a20}.c12{fill:#831b12}
.t0{fill:#b8b8b8}.t1{fill:#fde725}.t2{fill:#a5db36}.t3{fill:#4ac16d}.t4{fill:#1fa188}.t5{fill:#277f8e}.t6{fill:#365c8d}
.t7{fill:#46327e}.t8{fill:#440154}
)";
}

double NiceStep(double range, int n_steps) {
  const double rough = range / n_steps;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::string ThreeDigits(double value) {
  const double size = std::abs(value);
  const int digits = size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : size > 0 ? 3 : 0;
  return fmt::format("{:.{}f}", value, digits);
}

}  // namespace npumoe
