// SPDX-License-Identifier: Apache-2.0
// A stand-in for Core ML: loads real packages with our reader and runs them with our executors, so that
// coreml_device.mm runs where there is no Core ML. What it does otherwise than Core ML at its best is set here.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace npumoe::coreml_standin {

enum class Step { kCompile, kLoad, kArray, kFeatures, kPredict, kPlan };
enum class Failure { kNone, kError, kNoReason, kRaise };  // an NSError, nil without one, an NSException

struct Knobs {
  std::string macos = "15.0";  // what @available compares with

  struct Fault {
    Step step;
    size_t nth = 1;  // counted from SetKnobs on
    Failure failure = Failure::kError;
  };
  std::vector<Fault> faults;

  bool ignore_backings = false;  // gives arrays of its own
  std::string ignored_backing;   // for this output only
  size_t padding = 0;            // elements between rows of its own arrays; they hold 0xff

  // Features of a loaded model that are not what was compiled, by name.
  std::string reshaped_feature, shapeless_feature, retyped_feature, hidden_feature;
  // Outputs of a prediction that are not what was declared.
  std::string reshaped_output, hidden_output;

  std::map<std::string, std::string> device_of;  // MIL name -> "CPU", "GPU", "NPU" or "" (does not say)
  bool plan_without_program = false;
};
void SetKnobs(const Knobs& knobs);  // begins the log again

// What it was asked since SetKnobs.
struct Log {
  size_t n_synchronous = 0, n_asynchronous = 0;  // predictions
  size_t n_backings = 0;                         // offered by all predictions
  long units = -1;                               // MLComputeUnits of the last load or plan
  std::string function;                          // of the last load or plan
  std::string compiled;                          // where the last compiled package was put
};
Log ReadLog();

// Core ML's objects that are alive, after all work on other threads has ended.
long LiveObjects();

// The same of all Foundation objects, as GNUstep counts them. Some are made once and kept: compare after a warm-up.
long LiveFoundationObjects();

}  // namespace npumoe::coreml_standin
