// SPDX-License-Identifier: Apache-2.0
// Work in a process of its own: what can crash or hang there cannot take this one along.
#pragma once

#include <span>
#include <string>

#include "npumoe/result.h"

namespace npumoe {

struct ChildOutcome {
  int exit_code = -1;      // -1 when a signal ended it
  int signal = 0;          // that ended it; SIGKILL of ours when timed_out
  bool timed_out = false;  // was killed after the time limit
  std::string output;      // the first kMaxChildOutput bytes of its stdout

  bool ok() const { return exit_code == 0; }
  // "ended by signal 11 (Segmentation fault)", "still running after 120 s", "exit code 3".
  std::string Describe(double limit_seconds) const;
};

inline constexpr size_t kMaxChildOutput = size_t{1} << 20;

// Runs `argv` (a path and its arguments; no shell, no search) with the caller's environment, an empty stdin and the
// caller's stderr, and waits until it ended or `limit_seconds` are over. Fails with kIo when it cannot be started.
Result<ChildOutcome> RunChild(std::span<const std::string> argv, double limit_seconds);

}  // namespace npumoe
