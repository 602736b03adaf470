// SPDX-License-Identifier: Apache-2.0
// Simulated figures of models and plans as one web page, beside what the paper published.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/engine.h"
#include "npumoe/result.h"
#include "npumoe/simulate.h"

namespace npumoe {

// One figure that the paper or its readers published; nothing of it was measured or simulated by this project.
struct PublishedFigure {
  std::string_view key;      // "ablation_tiers_latency"
  std::string_view what;     // "+ tiers: latency lower by"
  double low = 0, high = 0;  // equal where one value was given
  std::string_view unit;     // "x" or "%"
  std::string_view setting;  // model, machine, prompt and chunk as far as they are known
  std::string_view source;
  std::string_view confidence;  // high: read in the abstract; medium: summaries agree; low: they do not
};

// In the order of the page; valid for ever.
std::span<const PublishedFigure> PublishedFigures();

struct ReportOptions {
  std::vector<std::string> models;  // as SimulateOptions::model
  // What all simulations share; `model`, `placements` and `objective` are not looked at. The bars, maps and time lines
  // are of its chunk_tokens and expert_weights; the page also has chunks of 256, 512 and 1024 tokens and the other of
  // fp16 and int8.
  SimulateOptions simulate;
  uint32_t n_threads = 2;
};

// A whole HTML page that loads nothing. Errors as Simulate's. `progress` counts simulated prompts and is called by one
// thread at a time, which need not be the caller's.
Result<std::string> MakeReport(const ReportOptions& options, const ProgressFn& progress);

}  // namespace npumoe
