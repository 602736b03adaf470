// SPDX-License-Identifier: Apache-2.0
// Samples, their middle and spread, and the line that says on what machine they were taken.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace npumoe {

struct Spread {
  double median = 0.0;
  double mad = 0.0;  // median absolute deviation
};
Spread SpreadOf(std::vector<double> values);

// Which clock: with one thread the CPU time of that thread, which other programs disturb least; else wall time.
enum class Clock { kWall, kThreadCpu };
inline Clock ClockFor(size_t n_threads) { return n_threads == 1 ? Clock::kThreadCpu : Clock::kWall; }
double Now(Clock clock);  // seconds

// Seconds of one call.
double Seconds(Clock clock, const std::function<void()>& call);

// "chip, OS, compiler, commit, SIMD target, n threads, clock, real".
std::string MachineLine(size_t n_threads);

// Ends the program with a message unless it was compiled with NDEBUG.
void RequireRelease();

}  // namespace npumoe
