// SPDX-License-Identifier: Apache-2.0
// What the cost model says of single ops, without a model or a device: simulated, on a named NPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

struct OpQuestion {
  std::string npu;  // "m4-max" or "sim:m4-max"
  // conv1x1, matmul, gemv: ROWSxINxOUT, weights are constants; gemv also INxOUT. swiglu: ROWSxDIMxEXPERTDIM, gate, up
  // and down of one expert. attention: TOKENSxCONTEXTxHEADSxKVHEADSxHEADDIM, without projections, keys and values are
  // inputs.
  std::string op;
  // Shapes of ops in one program that run one after the other, as one dispatch: "64x512x512*32,64x512x2048".
  std::string shape;
  std::string weights = "fp16";  // fp16, int8, w8a8 (activations too), lut8, lut6, lut4
  std::string path = "coreml";   // coreml; direct: the private interface, the host converts fp32 arrays; cpu
  bool runtime_weights = false;  // matmul: the second operand is an input
};

struct OpEstimate {
  std::string npu, title;
  double seconds = 0, joules = 0;
  double flops = 0, weight_bytes = 0;  // as streamed
  double floor_seconds = 0, io_seconds = 0, compute_seconds = 0,
         weight_seconds = 0;  // compute with its moves of operands
  std::string_view bound;     // the largest of them: "dispatch", "io", "compute", "weights"
};

// kInvalidArgument or kNotFound name what is wrong and what is wanted. Limits of the NPU are not looked at.
Result<OpEstimate> EstimateOp(const OpQuestion& question);

std::vector<std::string_view> EstimateOps();      // "conv1x1", ...
std::vector<std::string_view> EstimateWeights();  // "fp16", ...

}  // namespace npumoe
