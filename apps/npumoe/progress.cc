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
constexpr double kRedrawSeconds = 0.1;

// "41 s", "3 min", "2 h 5 min".
std::string Duration(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  const auto minutes = static_cast<uint64_t>(seconds / 60 + 0.5);
  return minutes < 90 ? fmt::format("{} min", minutes) : fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

}  // namespace

std::string SpeedText(double per_second, const std::string& unit, const std::string& rate) {
  if (per_second >= 0.1) return fmt::format("{:.1f} {}", per_second, rate);
  return fmt::format("{:.1f} s/{}", 1 / per_second, unit.substr(0, unit.size() - 1));
}

Progress::Progress(std::string name, std::string unit, std::string rate)
    : name_(std::move(name)),
      unit_(std::move(unit)),
      rate_(std::move(rate)),
      start_(Now()),
      terminal_(StderrIsTerminal()),
      counted_from_(start_) {
  if (terminal_) next_seconds_ = 0;
}

void Progress::ShowFrom(double done, double total) {
  if (!first_done_) first_done_ = done;
  Draw(done, total, *first_done_);
}

void Progress::ShowTime() {
  const double elapsed = Now() - start_;
  if (IsDue(elapsed, false)) Write(fmt::format("{}: {} so far", name_, Duration(elapsed)));
}

void Progress::Draw(double done, double total, double done_before) {
  const double now = Now(), elapsed = now - start_;
  total = std::max(total, 1.0);
  done = std::min(done, total);
  const double done_now = done - done_before;
  if (!(done_now > 0)) {  // no rate yet
    counted_from_ = now;
    if (IsDue(elapsed, false)) {
      Write(
          fmt::format("{}: {:.0f} of {:.0f} {}, {} so far", name_, std::floor(done), total, unit_, Duration(elapsed)));
    }
    return;
  }
  const double tenth = std::floor(done * 10 / total);
  if (!IsDue(elapsed, tenth >= next_tenth_)) return;
  next_tenth_ = tenth + 1;
  const double per_second = done_now / std::max(now - counted_from_, 1e-9);
  Write(fmt::format("{}: {:.0f} of {:.0f} {} ({:.0f} %), {}, {} left", name_, std::floor(done), total, unit_,
                    std::floor(done * 100 / total), SpeedText(per_second, unit_, rate_),
                    Duration((total - done) / per_second)));
}

bool Progress::IsDue(double elapsed, bool is_news) {
  if (elapsed < kQuietSeconds || (elapsed < next_seconds_ && !is_news)) return false;
  next_seconds_ = elapsed + (terminal_ ? kRedrawSeconds : kLongestSilence);
  return true;
}

void Progress::Write(const std::string& line) {
  WriteErr(terminal_ ? "\r" + line + "\033[K" : "npumoe: " + line + "\n");
  drawn_ = terminal_;
}

void Progress::Clear() {
  if (drawn_) WriteErr("\r\033[K");
  drawn_ = false;
}

}  // namespace npumoe
