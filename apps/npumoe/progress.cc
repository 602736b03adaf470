// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "apps/npumoe/console.h"

namespace npumoe {
namespace {

constexpr double kQuietSeconds = 1.0;
constexpr double kLongestSilence = 30.0;  // seconds

// "41 s", "3 min", "2 h 5 min".
std::string Duration(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  const auto minutes = static_cast<uint64_t>(seconds / 60 + 0.5);
  return minutes < 90 ? fmt::format("{} min", minutes) : fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

}  // namespace

Progress::Progress(std::string name, std::string unit, std::string rate)
    : name_(std::move(name)),
      unit_(std::move(unit)),
      rate_(std::move(rate)),
      start_(Now()),
      terminal_(StderrIsTerminal()) {}

void Progress::ShowFrom(double done, double total) {
  if (!first_done_) first_done_ = done;
  Draw(done, total, *first_done_);
}

void Progress::Draw(double done, double total, double done_before) {
  const double elapsed = Now() - start_;
  total = std::max(total, 1.0);
  done = std::min(done, total);
  const double done_now = done - done_before;
  const double tenth = std::floor(done * 10 / total);
  if (elapsed < kQuietSeconds) return;
  if (!(done_now > 0)) {  // no rate yet, and off a terminal nothing to tell
    if (terminal_) WriteErr(fmt::format("\r{}: {:.0f} of {:.0f} {}\033[K", name_, std::floor(done), total, unit_));
    drawn_ = terminal_;
    return;
  }
  if (!terminal_ && tenth < next_tenth_ && elapsed < next_seconds_) return;
  next_tenth_ = tenth + 1;
  next_seconds_ = elapsed + kLongestSilence;
  const double per_second = done_now / elapsed;
  const std::string line =
      fmt::format("{}: {:.0f} of {:.0f} {} ({:.0f} %), {:.1f} {}, {} left", name_, std::floor(done), total, unit_,
                  std::floor(done * 100 / total), per_second, rate_, Duration((total - done) / per_second));
  WriteErr(terminal_ ? "\r" + line + "\033[K" : "npumoe: " + line + "\n");
  drawn_ = terminal_;
}

void Progress::Clear() {
  if (drawn_) WriteErr("\r\033[K");
  drawn_ = false;
}

}  // namespace npumoe
