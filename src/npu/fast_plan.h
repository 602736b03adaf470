// SPDX-License-Identifier: Apache-2.0
// Where every fp16 value of a function lies while it runs, and what is run: made once, used by every run.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "graph/graph.h"
#include "npu/fast_ops.h"

namespace npumoe {

// Where a value lies. Values that are not fp16, and constants that are not, lie nowhere.
struct FastPlace {
  enum class Kind : uint8_t { kNowhere, kInput, kOutput, kConstant, kDecoded, kMemory };
  Kind kind = Kind::kNowhere;
  size_t index = 0;  // of the input, output, constant or (kDecoded) value
  size_t first = 0;  // halves before it
};

struct FastPlannedStep {
  const Op* op = nullptr;
  std::optional<FastStep> fast;  // nothing: by the reference
  size_t scratch = 0;            // halves before its scratch in memory
};

struct FastPlan {
  std::vector<FastPlace> places;           // [values]
  std::vector<FastPlannedStep> steps;      // ops that do something, in order
  std::vector<size_t> copied_outputs;      // those that a step does not write in place
  std::vector<const Op*> decoded_weights;  // constexpr ops whose result is read as fp16
  size_t memory_halves = 0;
};

// Values share memory when their lives do not meet.
FastPlan PlanFunction(const Graph& graph, const Function& function, FastShared& shared);

}  // namespace npumoe
