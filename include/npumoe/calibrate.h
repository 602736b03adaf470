// SPDX-License-Identifier: Apache-2.0
// Calibration: real text through a model on the CPU, to learn how it routes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/engine.h"
#include "npumoe/result.h"

namespace npumoe {

// Most bytes of routing statistics that are read: 512 experts in 94 layers with six chunk lengths take about 150 MB.
inline constexpr size_t kMaxStatsBytes = size_t{256} << 20;

// Of one calibration: what a file of statistics may hold.
inline constexpr size_t kMaxChunkLengths = 64, kMaxCalibrationTexts = 1024;

struct CalibrationText {
  std::string name;  // the "domain" in reports
  std::string text;
};

// Every text starts a prompt of its own (with the model's start token). One longer than the window goes on in the next
// window without what came before. Chunks are counted from the start of a window; the part at its end that is shorter
// than a chunk length enters no histogram of that length, but everything else.
struct CalibrateOptions {
  std::vector<uint32_t> chunk_tokens{128, 256, 512, 1024, 2048, 4096};  // lengths whose loads are counted, in any order
  uint64_t max_tokens = 0;     // read in all, shared evenly among the texts; 0 = everything
  uint32_t window_tokens = 0;  // 0 = the longest chunk length, 4,096 at least; never above the engine's context
};

struct LayerSkew {
  uint32_t layer = 0;            // MoE layers only
  double hottest_over_mean = 0;  // tokens of the hottest expert over the mean
  double effective_experts = 0;  // exp(entropy of popularity)
  uint32_t unseen = 0;           // experts no token chose
  double half_distance = 0;      // total variation between first and second halves of the texts, 0 (same) to 1
  double chance_distance = 0;    // what it would be by chance, were the choices drawn independently of each other
  double source_distance = 0;    // largest between two texts; 0 with one text
  float largest_activation = 0;  // of all stages; fp16 holds up to 65,504
  std::string largest_stage;     // where it was seen: "hidden"
};

struct CalibrationReport {
  std::string json;  // routing statistics, for a planner and for plots
  std::string model_name;
  uint64_t n_tokens = 0;
  std::vector<uint32_t> chunk_tokens;  // lengths that were filled; when none was, that of the longest window
  bool complete = true;                // false: stopped early, holds what was gathered
  uint32_t n_experts = 0, top_k = 0;
  std::vector<std::string> sources;
  std::vector<LayerSkew> layers;
  std::vector<std::string> warnings;  // too little text, chunk lengths never filled, experts never seen, fp16 in danger
};

// Called as text is read; return false to stop (what was gathered is returned, complete = false).
using CalibrateProgressFn = std::function<bool(uint64_t done_tokens, uint64_t total_tokens)>;

// Runs the texts through the model on the CPU, exactly. Fails with kInvalidArgument for a model without experts, for
// text without tokens, or for bad options; with kCancelled when stopped before anything was gathered.
Result<CalibrationReport> Calibrate(Engine& engine, std::span<const CalibrationText> texts,
                                    const CalibrateOptions& options, const CalibrateProgressFn& progress);

// Reads what Calibrate made. `name` is the subject of messages.
Result<CalibrationReport> ReadCalibration(std::string_view json, std::string_view name);

// The layer x expert heat map of popularity as one SVG document.
Result<std::string> CalibrationSvg(std::string_view json, std::string_view name);

}  // namespace npumoe
