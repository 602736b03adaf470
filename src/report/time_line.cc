// SPDX-License-Identifier: Apache-2.0
#include "report/time_line.h"

#include <algorithm>
#include <array>

#include "report/svg.h"

namespace npumoe {
namespace {

constexpr double kLineLeft = 48, kLineRight = 16, kLineWidth = 1120;  // pixels
constexpr double kLineTitleHeight = 28, kTrackHeight = 20, kTrackPitch = 24, kAxis = 42;
constexpr std::array<std::string_view, 3> kTracks{"npu", "cpu", "pack"};
constexpr double kBandHeight = kLineTitleHeight + 3 * kTrackPitch + kAxis;

struct Kind {
  std::string_view name, colour;
};
constexpr std::array<Kind, 6> kKinds{{{"attention", "orange"},
                                      {"router", "purple"},
                                      {"experts", "blue"},
                                      {"pack", "sky"},
                                      {"unpack", "yellow"},
                                      {"scatter", "green"}}};

std::string_view ColourOfZone(std::string_view name) {
  for (const Kind& kind : kKinds) {
    if (kind.name == name) return kind.colour;
  }
  return "grey";
}

void DrawBand(Svg& svg, const TimeBand& band, double top) {
  double end = 0;
  for (const SimulatedZone& zone : band.zones) end = std::max(end, zone.end);
  if (!(end > 0)) end = 1e-3;
  const double scale = (kLineWidth - kLineLeft - kLineRight) / end, tracks = top + kLineTitleHeight;
  const double bottom = tracks + 3 * kTrackPitch;
  svg.Text(0, top + 16, band.title, "h");
  const double step = NiceStep(1e3 * end, 10);  // milliseconds
  for (int i = 0; i * step <= 1e3 * end; ++i) {
    const double x = kLineLeft + i * step * 1e-3 * scale;
    svg.Line(x, tracks - 2, x, bottom, i == 0 ? "axis" : "grid");
    svg.Text(x, bottom + 13, fmt::format("{:g}", i * step), "s m");
  }
  svg.Text(kLineLeft, bottom + 28, "ms since the layer's begin", "s");
  for (size_t track = 0; track < kTracks.size(); ++track) {
    const double y = tracks + kTrackPitch * static_cast<double>(track);
    svg.Text(kLineLeft - 8, y + 14, kTracks[track], "e");
    for (const SimulatedZone& zone : band.zones) {
      if (zone.track != kTracks[track]) continue;
      const double width = std::max(0.6, (zone.end - zone.begin) * scale);  // thinner would not be seen
      svg.Rect(kLineLeft + zone.begin * scale, y, width - (width > 3 ? 0.6 : 0), kTrackHeight, ColourOfZone(zone.name),
               fmt::format("{}, {}: {} to {} ms", zone.track, zone.name, ThreeDigits(1e3 * zone.begin),
                           ThreeDigits(1e3 * zone.end)));
    }
  }
}

}  // namespace

std::string DrawTimeLine(const std::vector<TimeBand>& bands, std::string_view title) {
  Svg svg(static_cast<int>(kLineWidth), static_cast<int>(26 + kBandHeight * static_cast<double>(bands.size())), title);
  double x = kLineLeft;
  for (const Kind& kind : kKinds) {
    svg.Rect(x, 4, 16, 12, kind.colour);
    svg.Text(x + 21, 14, kind.name);
    x += 42 + 7.0 * static_cast<double>(kind.name.size());
  }
  double top = 26;
  for (const TimeBand& band : bands) {
    DrawBand(svg, band, top);
    top += kBandHeight;
  }
  return std::move(svg).Take();
}

}  // namespace npumoe
