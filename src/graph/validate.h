// SPDX-License-Identifier: Apache-2.0
// Parts of ValidateGraph that others need alone.
#pragma once

#include <string_view>

#include "graph/graph.h"

namespace npumoe {

inline constexpr size_t kOpCount = 0
#define NM_OP(kind, mil_name, opset) +1
#include "graph/ops.def"
#undef NM_OP
    ;

// Type within the limits and data of its size. `subject` begins the message.
Status CheckConstant(const Constant& constant, std::string_view subject);

// The rules of one function; constants are taken as checked.
Status ValidateFunction(const Graph& graph, const Function& function);

}  // namespace npumoe
