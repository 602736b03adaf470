// SPDX-License-Identifier: Apache-2.0
// `npumoe plot`: routing statistics as a picture.
#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/text.h"
#include "npumoe/calibrate.h"
#include "npumoe/files.h"

namespace npumoe {

int RunPlot(const std::vector<std::string>& args) {
  CLI::App app("Draws the heat map of layers and experts from what 'npumoe calibrate' wrote, as one SVG file.", "plot");
  std::string stats, output;
  app.add_option("stats", stats, "routing statistics; - reads stdin")->required();
  app.add_option("-o,--output", output, "file to write, - for stdout; without it the statistics' name with .svg")
      ->take_last();
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  if (output.empty()) {
    output = stats == "-" ? "-" : (stats.ends_with(".json") ? stats.substr(0, stats.size() - 5) : stats) + ".svg";
  }
  if (const Status apart = CheckApart({output}, {stats}); !apart) return UsageError("plot: " + apart.error().message);
  const auto json = ReadAll(stats, kMaxStatsBytes);
  if (!json) return FailWith(json.error());
  const auto svg = CalibrationSvg(*json, stats == "-" ? "stdin" : stats);
  if (!svg) return FailWith(svg.error());
  if (output != "-") {
    if (const Status saved = WriteOutputFile(output, *svg); !saved) return FailWith(saved.error());
  }
  const Status written =
      WriteOut(output == "-" ? *svg : fmt::format("{}: {}\n", OneLine(output), FormatBytes(svg->size())));
  return written.ok() ? kExitDone : FailWith(written.error());
}

}  // namespace npumoe
