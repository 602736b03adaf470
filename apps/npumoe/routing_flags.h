// SPDX-License-Identifier: Apache-2.0
// --routing and what belongs to it, for commands that simulate.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "npumoe/result.h"
#include "npumoe/simulate.h"

namespace npumoe {

class RoutingFlags {
 public:
  // Values of the other flags go to `options`, which must outlive parsing.
  void AddTo(CLI::App& app, SimulateOptions& options);
  // After parsing; kInvalidArgument for a flag that cannot be obeyed.
  Status Check() const;
  // After parsing: zipf:... as it is, a file's statistics into `options`.
  Status Read(SimulateOptions& options) const;
  // The file, or empty.
  std::string path() const;

 private:
  std::string routing_ = "zipf:0.6,0.3";
  const CLI::Option* drift_ = nullptr;
};

}  // namespace npumoe
