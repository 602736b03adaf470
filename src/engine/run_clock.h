// SPDX-License-Identifier: Apache-2.0
// The time of a run on an NPU: where CPU and NPU stand on the device's clock, and what the report and trace say of it.
// On a simulated device that clock is virtual and CPU work takes modelled time on it; on a real one both sides are measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/system.h"
#include "engine/trace.h"
#include "npu/device.h"
#include "npumoe/npu.h"

namespace npumoe {

// One thread at a time, but for RealNow and CpuWorkAt on a track of the caller's own.
class RunClock {
 public:
  explicit RunClock(const NpuDevice& device) : device_(device), spec_(device.Spec()) {}

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
  std::optional<Nanos> RealNow() const { return device_.RealNow(); }
  // The CPU has worked since now(): for `seconds` as modelled, or until `real_end` (this moment, when empty).
  void CpuWork(double seconds, StageReport& stage, std::string_view name, std::optional<Nanos> real_end = {});
  // The same since `begin` on a time line of the caller's; now() stays. Returns the end.
  Nanos CpuWorkAt(Nanos begin, double seconds, StageReport& stage, Track track, std::string_view name,
                  std::optional<Nanos> real_end = {});
  // Modelled work of another thread that the CPU's own had to wait for. What is measured holds it already.
  void ShareCpu(double seconds);
  // A program was loaded since `real_begin`, and everything waited.
  void Loaded(std::optional<Nanos> real_begin);
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
  const NpuDevice& device_;
  const NpuSpec& spec_;
  RunReport* report_ = nullptr;
  Trace* trace_ = nullptr;
  Nanos now_ = 0;
  Nanos npu_end_ = 0;  // of the last dispatch
  Nanos begin_ = 0;    // of this prefill
  ProcessUse use_;     // when it began
};

}  // namespace npumoe
