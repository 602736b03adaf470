// SPDX-License-Identifier: Apache-2.0
// Which version of Core ML a graph needs.
#pragma once

#include <string>

#include "graph/graph.h"

namespace npumoe {

inline constexpr int kMinOpset = 5, kMaxOpset = 9;  // CoreML5 (macOS 12) to CoreML9 (macOS 26)

inline std::string OpsetName(int opset) { return "CoreML" + std::to_string(opset); }
constexpr int SpecificationVersionOf(int opset) { return opset + 1; }

// The lowest opset that holds a valid graph: its ops and parameters, element types, interface and functions.
// kUnsupported when none does: an interface of bools, scalars or strings, a decoded weight as an output.
Result<int> LowestOpset(const Graph& graph);

// One function named "main" is written as a single-function model; anything else as a multi-function one.
bool NeedsFunctions(const Graph& graph);

// constexpr_lut_to_dense and constexpr_sparse_to_dense in the form of CoreML6, with packed bytes and a `shape`.
bool IsPackedForm(const Op& op);

// Whether an op that decodes constants has its parameters as attributes. The newest definition that is not newer than
// the opset decides; that of constexpr_affine_dequantize is CoreML6's in every opset.
bool HasAttributeForm(OpKind kind, int opset);

}  // namespace npumoe
