// SPDX-License-Identifier: Apache-2.0
// Parameters that Core ML's tools fill in when a program leaves them out. The framework itself has no defaults, so a
// package we write has them all, and a package we read gets those it lacks.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace npumoe {

// Makes a constant value of the function that the op belongs to. `param` is a hint for its name.
using AddConstantFn = std::function<ValueId(std::string_view param, ValueType type, std::vector<std::byte> data)>;

// Binds the defaulted parameters that `op` lacks and that opset `opset` (5 = CoreML5 ...) knows. An op whose operands
// do not exist or do not fit is left as it is: type inference says what is wrong with it.
void FillDefaults(const Function& function, Op& op, int opset, const AddConstantFn& add);

// The first opset in which the op has this parameter; 5 for those that every version has.
int OpsetOfParam(OpKind kind, std::string_view param);

}  // namespace npumoe
