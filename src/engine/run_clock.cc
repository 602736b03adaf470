// SPDX-License-Identifier: Apache-2.0
#include "engine/run_clock.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace npumoe {
namespace {

Nanos ToNanos(double seconds) { return static_cast<Nanos>(std::llround(seconds * 1e9)); }
double ToSeconds(Nanos nanos) { return static_cast<double>(nanos) * 1e-9; }

}  // namespace

StageReport& StageReport::operator+=(const StageReport& other) {
  programs += other.programs;
  loads += other.loads;
  dispatches += other.dispatches;
  rows_used += other.rows_used;
  rows_padded += other.rows_padded;
  rows_cpu += other.rows_cpu;
  rows_spilled += other.rows_spilled;
  rows_pruned += other.rows_pruned;
  rows_rerouted += other.rows_rerouted;
  npu_seconds += other.npu_seconds;
  cpu_seconds += other.cpu_seconds;
  return *this;
}

StageReport RunReport::Attention() const {
  StageReport sum;
  for (const LayerReport& layer : layers) sum += layer.attention;
  return sum;
}

StageReport RunReport::Experts() const {
  StageReport sum;
  for (const LayerReport& layer : layers) sum += layer.experts;
  return sum;
}

void RunClock::BeginPrefill() {
  WaitUntil(RealNow().value_or(npu_end_));
  begin_ = now_;
  use_ = GetProcessUse();
  report_->simulated = !RealNow();
}

void RunClock::EndPrefill() {
  if (const auto real = RealNow()) {
    WaitUntil(*real);
    const ProcessUse use = GetProcessUse();
    if (use.joules && use_.joules) report_->process_joules = report_->process_joules.value_or(0) + *use.joules - *use_.joules;
    if (use.cpu_cycles && use_.cpu_cycles) {
      report_->process_cycles = report_->process_cycles.value_or(0) + *use.cpu_cycles - *use_.cpu_cycles;
    }
  }
  report_->prefill_seconds += ToSeconds(now_ - begin_);
}

void RunClock::CpuWork(double seconds, StageReport& stage, std::string_view name, std::optional<Nanos> real_end) {
  now_ = CpuWorkAt(now_, seconds, stage, Track::kCpu, name, real_end);
}

void RunClock::ShareCpu(double seconds) {
  if (!RealNow()) WaitUntil(now_ + ToNanos(seconds));
}

void RunClock::Loaded(std::optional<Nanos> real_begin) {
  if (!real_begin) return;
  const Nanos end = RealNow().value_or(*real_begin);
  report_->load_wait_seconds += ToSeconds(end - *real_begin);
  if (trace_ != nullptr) trace_->Add(Track::kLoader, "load", *real_begin, end);
  WaitUntil(end);
}

Nanos RunClock::CpuWorkAt(Nanos begin, double seconds, StageReport& stage, Track track, std::string_view name,
                          std::optional<Nanos> real_end) {
  if (!real_end) real_end = RealNow();
  const Nanos end = real_end ? std::max(begin, *real_end) : begin + ToNanos(seconds);
  stage.cpu_seconds += ToSeconds(end - begin);
  if (!real_end) report_->cpu_joules += seconds * spec_.cpu_watts.value;
  if (trace_ != nullptr && end > begin) trace_->Add(track, std::string(name), begin, end);
  return end;
}

void RunClock::Dispatched(const Interval& ran, Nanos ready, StageReport& stage, std::string name,
                          std::vector<Trace::Argument> arguments) {
  ++stage.dispatches;
  stage.npu_seconds += ToSeconds(ran.end - ran.begin);
  report_->npu_joules += ran.energy_joules;
  report_->simulated = ran.simulated;
  // Neither the inputs nor the die were what the program waited for: it was being loaded.
  const Nanos free_at = std::max(ready, npu_end_);
  if (ran.simulated && ran.begin > free_at) {
    report_->load_wait_seconds += ToSeconds(ran.begin - free_at);
    if (trace_ != nullptr) trace_->Add(Track::kLoader, "load for " + name, free_at, ran.begin);
  }
  npu_end_ = std::max(npu_end_, ran.end);
  if (trace_ != nullptr) trace_->Add(Track::kNpu, std::move(name), ran.begin, ran.end, std::move(arguments));
}

}  // namespace npumoe
