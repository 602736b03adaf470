// SPDX-License-Identifier: Apache-2.0
// What an NPU refuses: every limit of a spec, enforced for every device before it compiles.
#pragma once

#include <string_view>

#include "graph/graph.h"
#include "npu/spec.h"

namespace npumoe {

// False for ops that Core ML places elsewhere (indices, sorting, control flow, whole-number arithmetic).
bool RunsOnNpu(OpKind kind);

// Checks one graph by itself: ops, element types, ranks, axis lengths, weight bytes. kUnsupported names the limit.
// `key` is the subject of the message.
Status CheckLimits(const Graph& graph, const NpuSpec& spec, std::string_view key);

}  // namespace npumoe
