// SPDX-License-Identifier: Apache-2.0
// Cost model: time and energy of one dispatch, from the work it does and a spec.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/graph.h"
#include "npu/spec.h"

namespace npumoe {

// What one run of one function does; weight bytes as they are streamed (after compression).
struct Work {
  double flops = 0;  // 2 per multiply-add
  double weight_bytes = 0;
  double io_bytes = 0;
  double largest_operand_bytes = 0;
  bool operator==(const Work&) const = default;
};

// Counts the work of a function from its ops and types.
Work CountWork(const Graph& graph, const Function& function, const NpuSpec& spec);

struct Cost {
  double seconds = 0;
  double joules = 0;
};

// One dispatch on a warm device, floor included.
Cost DispatchCost(const Work& work, const NpuSpec& spec);

// An expert FFN (gate, up, down) for `rows` rows on the CPU, weights of `weight_bytes` in the file's blocks.
Cost CpuExpertCost(double rows, double flops_per_row, double weight_bytes, const NpuSpec& spec);

}  // namespace npumoe
