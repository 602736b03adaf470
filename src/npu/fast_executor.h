// SPDX-License-Identifier: Apache-2.0
// Runs a function of a graph with fp16 semantics: ops that have a fast form in fp16 memory laid out beforehand,
// everything else by the reference.
#pragma once

#include <memory>
#include <span>

#include "graph/graph.h"
#include "npu/device.h"
#include "npu/fast_ops.h"

namespace npumoe {

// Borrows the graph and what is shared. Of all executors of one FastShared one runs at a time.
class FastExecutor {
 public:
  // Prepares every function; decodes the compressed weights that no fast form can use as they are.
  static Result<std::unique_ptr<FastExecutor>> Make(const Graph& graph, FastShared& shared);
  ~FastExecutor();

  // Inputs and outputs in declared order, all fp16; sizes were checked by the caller. Outputs overlap nothing.
  Status Run(const Function& function, std::span<const TensorRef> inputs, std::span<const MutableTensorRef> outputs);

  // Decoded weights. Constants are the graph's own.
  size_t HostBytes() const;

 private:
  struct Impl;
  explicit FastExecutor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace npumoe
