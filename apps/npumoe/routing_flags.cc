// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/routing_flags.h"

#include <fmt/core.h>

#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "npumoe/calibrate.h"

namespace npumoe {

void RoutingFlags::AddTo(CLI::App& app, SimulateOptions& options) {
  app.add_option("--routing", routing_,
                 "zipf:S or zipf:S,DRIFT: the expert of rank r is r^-S as popular, DRIFT is the deviation of log "
                 "popularity between prompts; or a file of 'npumoe calibrate' [zipf:0.6,0.3]");
  auto* drift = app.add_option("--drift", options.stats_drift, "with a file: DRIFT between prompts [0]");
  drift_ = drift;
  drift->check(NumberIn(0.0, kMaxDrift));
  app.add_option("--run-drift-factor", options.run_drift_factor,
                 "prompts drift so many times as much as those the plan was made from [1]")
      ->check(NumberIn(0.0, kMaxDriftFactor));
}

Status RoutingFlags::Check() const {
  return path().empty() ? Refuse({drift_}, "wants a file as --routing; zipf:S,DRIFT has its own") : Status(Ok{});
}

Status RoutingFlags::Read(SimulateOptions& options) const {
  options.stats_path = path();
  if (options.stats_path.empty()) {
    options.routing = routing_;
    return Ok{};
  }
  auto text = ReadAll(options.stats_path, kMaxStatsBytes);
  if (!text) return text.error();
  options.stats_json = std::move(*text);
  if (options.stats_json.empty()) {
    return Error{Code::kCorruptFile, fmt::format("{}: empty, wanted statistics", options.stats_path)};
  }
  return Ok{};
}

std::string RoutingFlags::path() const { return routing_.starts_with("zipf:") ? "" : routing_; }

}  // namespace npumoe
