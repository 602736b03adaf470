// SPDX-License-Identifier: Apache-2.0
// The time of a run on an NPU: where CPU and NPU stand on the device's clock, and what the report and trace say of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/trace.h"
#include "npu/device.h"
#include "npumoe/npu.h"

namespace npumoe {

// CPU work beside a simulated device takes modelled time on the same virtual clock. One thread at a time.
class RunClock {
 public:
  explicit RunClock(const NpuSpec& spec) : spec_(spec) {}

  // Where counts and zones go from now on; borrowed. `trace` may be null.
  void Attach(RunReport* report, Trace* trace) {
    report_ = report;
    trace_ = trace;
  }
  RunReport& report() { return *report_; }
  StageReport& attention(uint32_t layer) { return report_->layers[layer].attention; }
  StageReport& experts(uint32_t layer) { return report_->layers[layer].experts; }

  void BeginPrefill();
  void EndPrefill();

  Nanos now() const { return now_; }
  // The CPU works for `seconds` from now on.
  void CpuWork(double seconds, StageReport& stage, std::string_view name);
  // The same on a time line of the caller's; now() stays. Returns the end.
  Nanos CpuWorkAt(Nanos begin, double seconds, StageReport& stage, Track track, std::string_view name);
  double CopySeconds(double bytes) const { return bytes / spec_.copy_bytes_per_second.value; }

  // Counts one dispatch that was asked for at `ready` and ran as `ran` says.
  void Dispatched(const Interval& ran, Nanos ready, StageReport& stage, std::string name,
                  std::vector<Trace::Argument> arguments);
  void AddOverlap(Nanos both_busy) { report_->overlap_seconds += static_cast<double>(both_busy) * 1e-9; }
  // The CPU waits until `when`.
  void WaitUntil(Nanos when) { now_ = when > now_ ? when : now_; }

  // What was planned for the NPU runs on the CPU; `reason` is counted.
  void FallBack(const std::string& reason) { ++report_->fallbacks[reason]; }

  const NpuSpec& spec() const { return spec_; }

 private:
  const NpuSpec& spec_;
  RunReport* report_ = nullptr;
  Trace* trace_ = nullptr;
  Nanos now_ = 0;
  Nanos npu_end_ = 0;  // of the last dispatch
  Nanos begin_ = 0;    // of this prefill
};

}  // namespace npumoe
