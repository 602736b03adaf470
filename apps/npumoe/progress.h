// SPDX-License-Identifier: Apache-2.0
// Shows how far work over tokens or items has come: one line that is redrawn on a terminal, elsewhere a line per tenth,
// and at least one every half minute.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace npumoe {

class Progress {
 public:
  // `name` begins the line: "prompt". `unit` and `rate` are what is counted.
  explicit Progress(std::string name, std::string unit = "tokens", std::string rate = "t/s");
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Nothing is shown in the first second.
  void Show(size_t done, size_t total) { Draw(static_cast<double>(done), static_cast<double>(total), 0); }
  // The same with parts of a unit, where the first call says what was done before this run.
  void ShowFrom(double done, double total);
  // Removes the line from a terminal.
  void Clear();

 private:
  void Draw(double done, double total, double done_before);

  const std::string name_, unit_, rate_;
  const double start_;
  const bool terminal_;
  std::optional<double> first_done_;
  double next_tenth_ = 0;  // off a terminal: the first line comes after a second, the others per tenth
  double next_seconds_ = 0;
  bool drawn_ = false;
};

}  // namespace npumoe
