// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/progress.h"

#include <fmt/core.h>

#include <algorithm>
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

Progress::Progress(std::string name) : name_(std::move(name)), start_(Now()), terminal_(StderrIsTerminal()) {}

void Progress::Show(size_t done_tokens, size_t total_tokens) {
  const double elapsed = Now() - start_;
  const size_t total = std::max<size_t>(total_tokens, 1), done = std::min(done_tokens, total);
  const size_t tenth = done * 10 / total;
  if (elapsed < kQuietSeconds || done == 0) return;
  if (!terminal_ && tenth < next_tenth_ && elapsed < next_seconds_) return;
  next_tenth_ = tenth + 1;
  next_seconds_ = elapsed + kLongestSilence;
  const double per_second = static_cast<double>(done) / elapsed;
  const std::string line =
      fmt::format("{}: {} of {} tokens ({} %), {:.1f} t/s, {} left", name_, done, total, done * 100 / total, per_second,
                  Duration(static_cast<double>(total - done) / per_second));
  WriteErr(terminal_ ? "\r" + line + "\033[K" : "npumoe: " + line + "\n");
  drawn_ = terminal_;
}

void Progress::Clear() {
  if (drawn_) WriteErr("\r\033[K");
  drawn_ = false;
}

}  // namespace npumoe
