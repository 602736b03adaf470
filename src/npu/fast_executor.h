// SPDX-License-Identifier: Apache-2.0
// Runs a function of a graph with fp16 semantics: big products by the SIMD kernels, everything else by the reference.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "graph/graph.h"
#include "npu/device.h"

namespace npumoe {

// Borrows the graph. One thread at a time.
class FastExecutor {
 public:
  // Decodes the compressed weights, once.
  static Result<std::unique_ptr<FastExecutor>> Make(const Graph& graph, ThreadPool& pool);
  ~FastExecutor();

  // Inputs and outputs in declared order; sizes were checked by the caller.
  Status Run(const Function& function, std::span<const TensorRef> inputs, std::span<const MutableTensorRef> outputs);

 private:
  struct Impl;
  explicit FastExecutor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace npumoe
