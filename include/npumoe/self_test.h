// SPDX-License-Identifier: Apache-2.0
// Does an NPU compute what it should, where do its ops run, and how fast is it?
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "npumoe/engine.h"
#include "npumoe/result.h"

namespace npumoe {

// One graph on the NPU.
struct Probe {
  std::string name;     // "attention stage, 64 tokens", "2 x conv 2048 to 2048, 1024 rows"
  std::string failure;  // why it did not run; empty when it did
  double seconds = 0;   // median of `n_runs`; simulated or real as SelfTestReport says
  uint32_t n_runs = 0;
  double flops = 0, weight_bytes = 0, io_bytes = 0;  // of one run
  // Against the reference executor: relative RMS of the outputs, and whether it is within the limit. Probes that only
  // measure speed are not compared.
  bool compared = false, right = false;
  double relative_rms = 0;
  std::vector<OpPlacement> placements;  // in program order; empty when the device does not say
};

struct MeasuredNumber {
  std::string name, unit;  // a field of the NPU's description
  double value = 0, table = 0;  // measured; what the table says
};

struct SelfTestReport {
  std::string device;  // as asked for
  std::string npu, title, chip, os;
  bool simulated = true;  // no word about a real machine
  std::vector<Probe> probes;
  std::vector<MeasuredNumber> numbers;
  std::string spec_path;  // where the numbers were written for the planner; empty for a simulated NPU
  bool passed = false;    // every probe ran, and the compared ones are right
};

// Largest relative RMS of a compared probe's outputs. Source: fp16 sums of the demo model's stages differ by up to 2e-3
// from exact ones (docs/numerics.md); published sums of K = 5,632 on an ANE are off by 3 % (ane-guide ch. 14).
inline constexpr double kMaxProbeError = 0.05;

// Runs of a probe; times are medians, so the number should be odd.
inline constexpr uint32_t kProbeRuns = 15;

// `progress` is called with the name of the next probe; false stops (kCancelled). Fails with kUnsupported for a device
// that is not there. `options.npu.device` as for Engine::Open. On a virtual clock one run says all.
Result<SelfTestReport> RunSelfTest(const EngineOptions& options, const std::function<bool(const std::string&)>& progress,
                                   uint32_t n_runs = kProbeRuns);

}  // namespace npumoe
