// SPDX-License-Identifier: Apache-2.0
// Shows how far work over tokens or items has come: one line that is redrawn on a terminal, elsewhere a line per tenth,
// and at least one every half minute. Of work whose end cannot be foreseen, and of work that has not come to its first
// item, it shows for how long it has been going on.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace npumoe {

class Progress {
 public:
  // `name` begins the line: "prompt". `unit`, a plural, and `rate` are what is counted.
  explicit Progress(std::string name, std::string unit = "tokens", std::string rate = "t/s");
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Nothing is shown in the first second. Cheap enough to be called a million times a second.
  void Show(size_t done, size_t total) { Draw(static_cast<double>(done), static_cast<double>(total), 0); }
  // The same with parts of a unit, where the first call says what was done before this run.
  void ShowFrom(double done, double total);
  // Of work without a count.
  void ShowTime();
  // Removes the line from a terminal.
  void Clear();

 private:
  static constexpr double kLongestSilence = 30.0;  // seconds

  void Draw(double done, double total, double done_before);
  // Whether a line is due; `is_news` off a terminal.
  bool IsDue(double elapsed, bool is_news);
  void Write(const std::string& line);

  const std::string name_, unit_, rate_;
  const double start_;
  const bool terminal_;
  std::optional<double> first_done_;
  double counted_from_;    // when there was still nothing done: rates do not count what comes before the first item
  double next_tenth_ = 0;  // off a terminal: the first line comes after a second, the others per tenth
  double next_seconds_ = kLongestSilence;
  bool drawn_ = false;
};

// "12.3 items/s"; below one in ten seconds "31.4 s/item". `unit` is the plural: "items".
std::string SpeedText(double per_second, const std::string& unit, const std::string& rate);

// Never stops anything: shows for how long work has been going on, in `progress`, which must outlive it.
inline std::function<bool()> ShowingTime(Progress& progress) {
  return [&progress] {
    progress.ShowTime();
    return true;
  };
}

}  // namespace npumoe
