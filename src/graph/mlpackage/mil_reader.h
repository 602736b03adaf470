// SPDX-License-Identifier: Apache-2.0
// Programs as protobuf messages to graphs. For this folder only.
#pragma once

#include "graph/mlpackage/blob_file.h"
#include "graph/mlpackage/mil_types.h"
#include "graph/mlpackage/mlpackage.h"

namespace npumoe {

// The program as a valid graph. `model_bytes` bounds, with the weight files, what constants may take. Messages name
// function and op but no file.
Result<Graph> ReadProgram(const mil::Program& program, int specification_version, size_t model_bytes,
                          WeightFiles& weights);

// "CoreML8" -> 8; kUnsupported for newer ones.
Result<int> OpsetFromName(std::string_view name);

}  // namespace npumoe
