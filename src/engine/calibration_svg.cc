// SPDX-License-Identifier: Apache-2.0
// The heat map of a model's routing as one SVG document.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "base/check.h"
#include "format/markup.h"
#include "moe/routing_stats.h"
#include "npumoe/calibrate.h"

namespace npumoe {
namespace {

// Popularity over an even spread, from 1/8 to 8 in half octaves: blue below, nearly white at 1, red above. The lightness
// falls on both sides, so the map also reads in print and by the colour-blind. Never chosen is black.
constexpr int kStepsEachWay = 6;
constexpr std::array<const char*, 2 * kStepsEachWay + 1> kColours{"#0b3c6f", "#1a5a9a", "#3a7fbd", "#6aa5d5", "#9cc6e6",
                                                                  "#cbe0f0", "#f4f1ec", "#fbdcc4", "#f7b98f", "#ee8f5e",
                                                                  "#dc6138", "#b93a20", "#831b12"};
constexpr size_t kMaxTitledCells = 65536;  // more hover titles would make a file of tens of megabytes
constexpr int kLeft = 56, kTop = 84, kRight = 190, kRowGap = 1;

// Index into kColours of a popularity above 0.
int ColourOf(double over_mean) {
  const double halves = std::round(2 * std::log2(over_mean));
  return static_cast<int>(std::clamp<double>(halves, -kStepsEachWay, kStepsEachWay)) + kStepsEachWay;
}

std::string Grouped(uint64_t count) {
  const std::string digits = fmt::format("{}", count);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

// Labels every 1, 2, 5, 10, 20, ... so that they stand at least `least` apart.
uint32_t LabelStep(int pitch, int least) {
  uint32_t step = 1;
  for (const uint32_t factor : {2u, 5u, 10u, 20u, 50u, 100u, 200u, 500u, 1000u, 2000u}) {
    if (static_cast<int>(step) * pitch >= least) break;
    step = factor;
  }
  return step;
}

class HeatMap {
 public:
  explicit HeatMap(const RoutingStats& stats)
      : stats_(stats),
        n_experts_(static_cast<int>(std::max(stats.n_experts, 1u))),
        n_layers_(static_cast<int>(stats.n_layers)),
        cell_(std::clamp(960 / n_experts_, 2, 44)),
        row_(std::clamp(720 / std::max(n_layers_, 1), 5, 26)),
        titled_(size_t{stats.n_experts} * stats.n_layers <= kMaxTitledCells) {}

  std::string Draw() {
    const int grid = n_experts_ * cell_;
    const int width = kLeft + std::max(grid, 560) + kRight, height = kTop + n_layers_ * row_ + 104;
    Put("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
        "role=\"img\">\n",
        width, height);
    Put("<title>Routing of {}</title>\n", EscapedMarkup(stats_.model_name));
    Style();
    Put("<rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n", width, height);
    Heading();
    for (int layer = 0; layer < n_layers_; ++layer) Row(layer);
    Axes();
    Legend(kTop + n_layers_ * row_ + 62);
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void Put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  void Style() {
    out_ +=
        "<style>\ntext{font:11px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;fill:#444}\n"
        ".h{font-size:17px;font-weight:600;fill:#111}\n.e{text-anchor:end}\n.m{text-anchor:middle}\n"
        ".u{fill:#111}\n.d{fill:#d9d9d9}\n";
    for (size_t i = 0; i < kColours.size(); ++i) Put(".c{}{{fill:{}}}\n", i, kColours[i]);
    out_ += "</style>\n";
  }

  void Heading() {
    const std::string name = EscapedMarkup(stats_.model_name);
    Put("<text class=\"h\" x=\"{}\" y=\"30\">Which experts {} chooses</text>\n", kLeft,
        name.empty() ? "the model" : name);
    Put("<text x=\"{}\" y=\"50\">{} tokens of {} text{}, {} of {} experts per token{}</text>\n", kLeft,
        Grouped(stats_.n_tokens), stats_.sources.size(), stats_.sources.size() == 1 ? "" : "s", stats_.top_k,
        stats_.n_experts, stats_.complete ? "" : "; stopped early");
    Put("<text x=\"{}\" y=\"{}\">effective experts, hottest</text>\n", kLeft + n_experts_ * cell_ + 10, kTop - 8);
  }

  int Y(int layer) const { return kTop + layer * row_; }

  void Row(int layer) {
    const LayerRouting& routing = stats_.layers[static_cast<size_t>(layer)];
    const int width = n_experts_ * cell_, height = row_ - kRowGap;
    if (routing.tokens.empty()) {
      Put("<rect class=\"d\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>layer {}: dense</title></rect>\n",
          kLeft, Y(layer), width, height, layer);
      if (row_ >= 10) Put("<text x=\"{}\" y=\"{}\">dense</text>\n", kLeft + width + 10, Y(layer) + row_ / 2 + 4);
      return;
    }
    double total = 0;
    for (const uint64_t tokens : routing.tokens) total += static_cast<double>(tokens);
    const double mean = total / n_experts_;
    const int gap = cell_ >= 6 ? 1 : 0;
    for (int expert = 0; expert < n_experts_; ++expert) {
      const uint64_t tokens = routing.tokens[static_cast<size_t>(expert)];
      const int x = kLeft + expert * cell_;
      const std::string colour = tokens == 0 ? "u" : fmt::format("c{}", ColourOf(static_cast<double>(tokens) / mean));
      Put("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", colour, x, Y(layer), cell_ - gap, height);
      if (!titled_) {
        out_ += "/>\n";
      } else if (tokens == 0) {
        Put("><title>layer {}, expert {}: never chosen</title></rect>\n", layer, expert);
      } else {
        Put("><title>layer {}, expert {}: {} tokens, {:.2f} x mean</title></rect>\n", layer, expert, Grouped(tokens),
            static_cast<double>(tokens) / mean);
      }
    }
    if (row_ < 10) return;
    const Skew skew = SkewOf(routing);
    Put("<text x=\"{}\" y=\"{}\">{:.1f}, {:.1f} x</text>\n", kLeft + width + 10, Y(layer) + row_ / 2 + 4,
        skew.effective_experts, skew.hottest_over_mean);
  }

  void Axes() {
    const int bottom = kTop + n_layers_ * row_;
    for (int layer = 0; layer < n_layers_; layer += static_cast<int>(LabelStep(row_, 12))) {
      Put("<text class=\"e\" x=\"{}\" y=\"{}\">{}</text>\n", kLeft - 8, Y(layer) + row_ / 2 + 4, layer);
    }
    for (int expert = 0; expert < n_experts_; expert += static_cast<int>(LabelStep(cell_, 30))) {
      Put("<text class=\"m\" x=\"{}\" y=\"{}\">{}</text>\n", kLeft + expert * cell_ + cell_ / 2, bottom + 16, expert);
    }
    Put("<text class=\"e\" x=\"{}\" y=\"{}\">layer</text>\n", kLeft - 8, kTop - 8);
    Put("<text x=\"{}\" y=\"{}\">expert</text>\n", kLeft, bottom + 34);
  }

  void Legend(int y) {
    constexpr int kBox = 22;
    Put("<text x=\"{}\" y=\"{}\">tokens of an expert over the mean of its layer</text>\n", kLeft, y - 6);
    for (int i = 0; i < static_cast<int>(kColours.size()); ++i) {
      Put("<rect class=\"c{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"12\"/>\n", i, kLeft + i * kBox, y, kBox);
    }
    static constexpr std::pair<int, const char*> kMarks[] = {{0, "1/8"}, {2, "1/4"}, {4, "1/2"}, {6, "1"},
                                                             {8, "2"},   {10, "4"},  {12, "8"}};
    for (const auto& [step, text] : kMarks) {
      Put("<text class=\"m\" x=\"{}\" y=\"{}\">{}</text>\n", kLeft + step * kBox + kBox / 2, y + 26, text);
    }
    const int x = kLeft + static_cast<int>(kColours.size()) * kBox + 28;
    Put("<rect class=\"u\" x=\"{}\" y=\"{}\" width=\"22\" height=\"12\"/>\n", x, y);
    Put("<text x=\"{}\" y=\"{}\">never chosen</text>\n", x + 30, y + 10);
    Put("<rect class=\"d\" x=\"{}\" y=\"{}\" width=\"22\" height=\"12\"/>\n", x + 124, y);
    Put("<text x=\"{}\" y=\"{}\">dense layer</text>\n", x + 154, y + 10);
  }

  const RoutingStats& stats_;
  const int n_experts_, n_layers_, cell_, row_;  // cell_ and row_ in pixels
  const bool titled_;
  std::string out_;
};

}  // namespace

Result<std::string> CalibrationSvg(std::string_view json, std::string_view name) {
  NM_TRY_VAR(const RoutingStats stats, ParseRoutingStats(json, name));
  return HeatMap(stats).Draw();
}

}  // namespace npumoe
