// SPDX-License-Identifier: Apache-2.0
#include "npu/cost.h"

#include <algorithm>

namespace npumoe {
namespace {

const ValueType& TypeOf(const Function& function, ValueId id) { return function.values[id].type; }

// Multiply-adds count twice; everything else once per output element.
double Flops(const Function& function, const Op& op) {
  const ValueType& out = TypeOf(function, op.outputs[0]);
  const auto elems = static_cast<double>(out.elems());
  const auto operand = [&](std::string_view name) -> const ValueType& {
    return TypeOf(function, op.Find(name)->values[0]);
  };
  switch (op.kind) {
    case OpKind::kConv: {  // weight [Cout, Cin / groups, kernel...]
      const ValueType& weight = operand("weight");
      return 2 * elems * static_cast<double>(weight.elems()) / static_cast<double>(weight.dims[0]);
    }
    case OpKind::kLinear:
      return 2 * elems * static_cast<double>(operand("weight").dims[1]);
    case OpKind::kMatMul: {  // inner extent: elements of x over its rows in the result
      const ValueType& x = operand("x");
      const size_t rows = out.dims.size() >= 2 ? out.dims[out.dims.size() - 2] : 1;
      size_t batch = 1;
      for (size_t d = 0; d + 2 < x.dims.size(); ++d) batch *= x.dims[d];
      return 2 * elems * static_cast<double>(x.elems()) / static_cast<double>(std::max<size_t>(1, rows * batch));
    }
    case OpKind::kScaledDotProductAttention:
      return 4 * static_cast<double>(operand("query").elems()) *
             static_cast<double>(operand("key").dims[operand("key").dims.size() - 2]);
    case OpKind::kReshape:
    case OpKind::kExpandDims:
    case OpKind::kSqueeze:
    case OpKind::kIdentity:
      return 0;
    default:
      return elems;
  }
}

double DenseF16Bytes(const ValueType& type) { return 2.0 * static_cast<double>(type.elems()); }

}  // namespace

Work CountWork(const Graph& graph, const Function& function, const NpuSpec& spec) {
  Work work;
  std::vector<bool> counted(graph.constants.size(), false);
  const auto count_weight = [&](ValueId id, double bytes) {
    const uint32_t constant = function.values[id].constant;
    if (constant == kNoConstant || counted[constant]) return;
    counted[constant] = true;
    work.weight_bytes += bytes;
  };
  for (const Op& op : function.ops) {
    if (!IsConstexpr(op.kind)) work.flops += Flops(function, op);
    // A chip that cannot stream int8 keeps such weights unfolded to fp16; palettes stream on every chip.
    const bool unfolds = op.kind == OpKind::kConstexprAffineDequantize && !spec.streams_int8;
    for (const Operand& operand : op.operands) {
      for (const ValueId id : operand.values) {
        const ValueType& type = TypeOf(function, id);
        const bool stored_int8 = unfolds && operand.param == "quantized_data";
        count_weight(id, stored_int8 ? DenseF16Bytes(type) : static_cast<double>(type.bytes()));
        if (!IsConstexpr(op.kind))
          work.largest_operand_bytes = std::max(work.largest_operand_bytes, DenseF16Bytes(type));
      }
    }
    for (const ValueId id : op.outputs) {
      work.largest_operand_bytes = std::max(work.largest_operand_bytes, DenseF16Bytes(TypeOf(function, id)));
    }
  }
  for (const ValueId id : function.inputs) work.io_bytes += static_cast<double>(TypeOf(function, id).bytes());
  for (const ValueId id : function.outputs) work.io_bytes += static_cast<double>(TypeOf(function, id).bytes());
  return work;
}

Cost DispatchCost(const Work& work, const NpuSpec& spec) {
  double compute = work.flops / spec.flops_per_second.value;
  if (work.largest_operand_bytes >= spec.large_operand_bytes.value) compute *= spec.large_operand_factor.value;
  const double stream = work.weight_bytes / spec.weight_bytes_per_second.value;
  const double busy = std::max(compute, stream) + work.io_bytes / spec.io_bytes_per_second.value;
  const double seconds = spec.dispatch_seconds.value + busy;
  // Rates over the whole dispatch: during the floor the engine is lit but idle.
  const double watts = spec.watts_base.value + spec.watts_per_tflops.value * work.flops / seconds / 1e12 +
                       spec.watts_per_gbps.value * work.weight_bytes / seconds / 1e9;
  return {seconds, watts * seconds};
}

Cost CpuExpertCost(double rows, double flops_per_row, double weight_bytes, const NpuSpec& spec) {
  if (rows <= 0) return {};
  const double seconds =
      std::max(rows * flops_per_row / spec.cpu_flops_per_second.value, weight_bytes / spec.cpu_bytes_per_second.value);
  return {seconds, seconds * spec.cpu_watts.value};
}

}  // namespace npumoe
