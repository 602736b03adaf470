// SPDX-License-Identifier: Apache-2.0
// Scalar executor: the definition of every op. Slow, plain, shares no code with the SIMD kernels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace npumoe {

// A value at run time: floats for fp16 and fp32 (already rounded to their type), int64 for integers and bools.
struct Array {
  ValueType type;
  std::vector<float> floats;
  std::vector<int64_t> ints;
};

enum class Rounding {
  kF32,  // every op in f32: what the graph means
  kF16,  // fp16 values round to nearest even after every op; sums accumulate in f32 (double for norms), overflow to inf
};

// Outputs of `function` in declared order. `inputs` in declared order, with exactly the declared types
// (kInvalidArgument otherwise). Under kF32, fp16 values are not rounded but keep f32.
Result<std::vector<Array>> RunReference(const Graph& graph, const Function& function, const std::vector<Array>& inputs,
                                        Rounding rounding);

// The most bytes that RunReference holds at once for a function of a valid graph, inputs and outputs included.
uint64_t ReferencePeakBytes(const Function& function);

// The data of a constant as an Array (sub-byte types unpacked).
Array ArrayOf(const Constant& constant);

}  // namespace npumoe
