// SPDX-License-Identifier: Apache-2.0
// Shows how far work over tokens has come: one line that is redrawn on a terminal, elsewhere a line per tenth, and at least one every half minute.
#pragma once

#include <cstddef>
#include <string>

namespace npumoe {

class Progress {
 public:
  // `name` begins the line: "prompt".
  explicit Progress(std::string name);
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Nothing is shown in the first second.
  void Show(size_t done_tokens, size_t total_tokens);
  // Removes the line from a terminal.
  void Clear();

 private:
  const std::string name_;
  const double start_;
  const bool terminal_;
  size_t next_tenth_ = 0;  // off a terminal: the first line comes after a second, the others per tenth
  double next_seconds_ = 0;
  bool drawn_ = false;
};

}  // namespace npumoe
