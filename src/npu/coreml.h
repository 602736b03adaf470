// SPDX-License-Identifier: Apache-2.0
// Core ML behind plain C++: coreml_device.mm where there is Core ML, coreml_stub.cc elsewhere. Marshalling only; what to
// compile, where compiled packages lie and when they are loaded is decided by the caller.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "npu/device.h"

namespace npumoe {

// Which processors Core ML may use. The CPU is always one of them: Core ML has no "Neural Engine only".
enum class ComputeUnits { kCpuAndNeuralEngine, kCpuAndGpu, kCpuOnly };

// What this system's Core ML can do. All false and empty in the stub.
struct CoreMlSystem {
  bool available = false;
  bool has_functions = false;   // loads a function of a package by name (macOS 15)
  bool has_placement = false;   // tells where ops would run (macOS 14.4)
  std::string os_version;       // "Version 15.1 (Build 24B83)": part of the key of compiled packages
};
CoreMlSystem DescribeCoreMl();

// One function of a package, with its tensors in the order that Run takes them.
struct CoreMlFunction {
  struct Tensor {
    std::string name;
    ValueType type;  // fp16, fp32 or int32
  };
  std::string name;  // empty: the only function of a package without named ones
  std::vector<Tensor> inputs, outputs;
};

// Dense, row-major, in the tensor's own element type. Borrowed for the call.
struct CoreMlInput {
  const void* data = nullptr;
  size_t size_bytes = 0;
};
struct CoreMlOutput {
  void* data = nullptr;
  size_t size_bytes = 0;
};

// A loaded function. One thread at a time.
class CoreMlModel {
 public:
  virtual ~CoreMlModel() = default;

  // Blocks until all outputs are written. Inputs are read where they lie; outputs are written where they lie when Core
  // ML takes the memory offered, else copied from wherever Core ML put them, whatever strides it chose. Fails with
  // kInvalidArgument for a wrong number or size of tensors, kDevice with Core ML's own words for everything else.
  virtual Status Run(std::span<const CoreMlInput> inputs, std::span<const CoreMlOutput> outputs) = 0;

  // How many outputs of all runs Core ML wrote into the memory offered, and how many had to be copied.
  struct OutputCounts {
    size_t in_place = 0, copied = 0;
  };
  virtual OutputCounts output_counts() const = 0;
};

// Compiles a package (`.mlpackage`) and moves the result (a `.mlmodelc` folder) to `compiled_path`, which must be free.
// kUnsupported in the stub; kDevice with Core ML's own words; kIo.
Status CompileCoreMl(const std::string& package_path, const std::string& compiled_path);

// Loads one function of a compiled package. kUnsupported in the stub, and for a named function where the system has
// none; kDevice when Core ML refuses, or when the function's tensors are not those of `function`.
Result<std::unique_ptr<CoreMlModel>> LoadCoreMl(const std::string& compiled_path, const CoreMlFunction& function,
                                                ComputeUnits units);

// All ops of a function in program order. kUnsupported in the stub and on older systems.
Result<std::vector<OpPlacement>> PlaceCoreMl(const std::string& compiled_path, std::string_view function,
                                             ComputeUnits units);

}  // namespace npumoe
