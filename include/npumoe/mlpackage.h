// SPDX-License-Identifier: Apache-2.0
// Core ML packages (`.mlpackage`): what is in one, and running one with the reference executor.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

struct PackageTensor {
  std::string name, type;  // "fp16[1, 64, 1, 32]"; '?' for a dimension without a fixed size
};

struct PackageFunctionInfo {
  std::string name;
  std::vector<PackageTensor> inputs, outputs, states;
  uint64_t n_ops = 0;                                 // constants aside
  std::vector<std::pair<std::string, uint64_t>> ops;  // MIL name, how many; most frequent first
};

// Weights of one element type; a tensor that several functions use counts once.
struct PackageWeights {
  std::string type;  // "fp16", "int4", ...
  uint64_t n_tensors = 0, size_bytes = 0;
};

struct PackageInfo {
  std::string path;
  int specification_version = 0;  // 6 = macOS 12, 7 = 13, 8 = 14, 9 = 15, 10 = 26
  std::string opset;              // "CoreML8"
  bool multi_function = false;    // functions are chosen by name
  std::string default_function;
  std::vector<std::pair<std::string, std::string>> metadata;  // author, license, ..., keys of whoever wrote it
  std::vector<PackageFunctionInfo> functions;
  uint64_t model_bytes = 0, weight_file_bytes = 0;
  std::vector<PackageWeights> weights;  // most bytes first; empty when the package cannot be run here
  std::vector<std::string> warnings;    // ops that leave the NPU; why the package cannot be run here
};

// A folder named *.mlpackage, or any folder with a package's manifest.
bool LooksLikePackage(const std::string& path);

// Fails for what is no package or a broken one. One that is whole but has parts that this engine does not run (states,
// flexible shapes, other ops) is described, with the reason among the warnings.
Result<PackageInfo> DescribePackage(const std::string& path);

struct RunPackageOptions {
  std::string function;                                     // empty = the package's default
  std::vector<std::pair<std::string, std::string>> inputs;  // name, .npy file; each input of the function once
  std::string out_dir;                                      // made if it is missing; NAME.npy per output
  // Empty: the scalar reference executor. "coreml", "coreml:gpu", "coreml:cpu": Core ML, as NpuOptions::device.
  std::string device;
  bool f32 = false;                                         // reference only: no rounding to fp16 between ops: what the graph means
  uint64_t limit_bytes = uint64_t{8} << 30;                 // memory for tensors; a function that needs more is refused
};

struct PackageOutput {
  std::string name, type, path;
};

// Runs one function once and writes all outputs, or none. Floats are rounded to an
// input's type; anything else must have it. With f32, fp16 outputs are written as fp32.
Result<std::vector<PackageOutput>> RunPackage(const std::string& path, const RunPackageOptions& options);

}  // namespace npumoe
