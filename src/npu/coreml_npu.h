// SPDX-License-Identifier: Apache-2.0
// A real NPU through Core ML: graphs become packages, packages become compiled programs that are kept on disk, and what
// Core ML does to a package for the first time happens in a process of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "npu/coreml.h"
#include "npu/device.h"

namespace npumoe {

struct CoreMlNpuOptions {
  NpuSpec spec;  // limits that graphs are held to, and what the planner reckons with
  ComputeUnits units = ComputeUnits::kCpuAndNeuralEngine;
  std::string cache_folder;  // of compiled programs; empty: they live as long as the device
  uint64_t cache_bytes = 0;  // the least recently used go above this
  // A command that ends with CompileAndTry(PACKAGE, COMPILED, UNITS), those three appended to its arguments; exit code
  // 0 when it went well, else the reason on stdout. Empty: in this process, which a bad package may then kill.
  std::vector<std::string> compiler;
  // The Neural Engine sleeps when nobody asks: for so long after a dispatch a tiny program keeps it awake. 0 = never.
  double keep_warm_seconds = 0;
  double compile_seconds = 300;  // a compiler that takes longer is killed. Published: 1-100 s for a first load
};

// Time is real. Fails with kUnsupported where there is no Core ML.
Result<std::unique_ptr<NpuDevice>> MakeCoreMlNpu(CoreMlNpuOptions options);

// Compiles a package of this project, loads every function and runs it once on zeros.
Status CompileAndTry(const std::string& package_path, const std::string& compiled_path, ComputeUnits units);

// Names of compute units as commands and caches have them: "ane", "gpu", "cpu".
std::string_view ToString(ComputeUnits units);
Result<ComputeUnits> ParseComputeUnits(std::string_view name);

// Names of devices as users write them: "coreml" (the Neural Engine), "coreml:ane", "coreml:gpu", "coreml:cpu".
bool IsCoreMlName(std::string_view device);
Result<ComputeUnits> CoreMlUnits(std::string_view device);

// Key of a graph's compiled form: changes with the graph, the spec's name, the system's build and the compute units.
std::string ProgramKey(const Graph& graph, std::string_view spec_name, std::string_view os_version, ComputeUnits units);

// The function's interface as Core ML is asked for it; `by_name` when the package has several.
CoreMlFunction InterfaceOf(const Function& function, bool by_name);

}  // namespace npumoe
