// SPDX-License-Identifier: Apache-2.0
// The one virtual seam: a device compiles static graphs and runs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "npu/spec.h"
#include "npumoe/npu.h"

namespace npumoe {

// Time on the clock of a device: real nanoseconds since its creation, or virtual ones of a simulated device. The two
// are never mixed: Interval says which.
using Nanos = int64_t;

struct Interval {
  Nanos begin = 0, end = 0;
  double energy_joules = 0;  // of the NPU rail; 0 when the device cannot say
  bool simulated = false;
};

// One function's input or output: dense fp16, row-major, as the graph declares. Borrowed for the call.
struct TensorRef {
  const uint16_t* data = nullptr;
  size_t elems = 0;
};
struct MutableTensorRef {
  uint16_t* data = nullptr;
  size_t elems = 0;
};

// A graph compiled for a device. One thread at a time.
class NpuProgram {
 public:
  virtual ~NpuProgram() = default;

  // Runs `function` and blocks until its outputs are written. Inputs and outputs in declared order; an output overlaps
  // neither an input nor another output. The program starts no earlier than `ready` on the device's clock, and after
  // everything queued before it on the same die. Fails with kDevice (the device), or kInvalidArgument (unknown
  // function, wrong number or size of tensors).
  virtual Result<Interval> Run(std::string_view function, std::span<const TensorRef> inputs,
                               std::span<const MutableTensorRef> outputs, Nanos ready) = 0;

  // Where the ops of a function run, in program order; empty when the device cannot say.
  virtual std::vector<OpPlacement> Placement(std::string_view /*function*/) const { return {}; }

  // Weights on the device.
  virtual size_t ResidentBytes() const = 0;

  // Memory of this process that the program holds.
  virtual size_t HostBytes() const { return ResidentBytes(); }
};

// One die of an NPU. One thread at a time.
class NpuDevice {
 public:
  virtual ~NpuDevice() = default;

  virtual const NpuSpec& Spec() const = 0;

  // Now on the device's clock; nothing when that is a virtual one, which moves with the work alone.
  virtual std::optional<Nanos> RealNow() const { return std::nullopt; }

  // What a user should know about how the device runs; empty for nothing.
  virtual std::string Note() const { return {}; }

  // Compiles and loads. `key` identifies the graph in caches and messages. The graph is consumed: its constants become
  // the program's weights. Fails with kUnsupported naming the limit that the graph breaks, kOutOfMemory when the
  // resident programs leave no room, or kDevice.
  virtual Result<std::unique_ptr<NpuProgram>> Compile(Graph graph, std::string_view key) = 0;

  // Compiles what Compile would, and keeps it for then, without loading it. Any number of threads.
  virtual Status Prepare(const Graph& /*graph*/, std::string_view /*key*/) { return Ok{}; }

  // Memory of this process that all programs share, besides what each holds.
  virtual size_t HostBytes() const { return 0; }
};

}  // namespace npumoe
