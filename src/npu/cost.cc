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

// The product that an op is; count 0 for an op that is none. `stored` says in how many bytes values came as weights.
Product MatrixProductOf(const Function& function, const Op& op, const std::vector<double>& stored) {
  Product p;
  p.count = 0;
  const bool is_conv = op.kind == OpKind::kConv, is_linear = op.kind == OpKind::kLinear;
  if (!is_conv && !is_linear && op.kind != OpKind::kMatMul) return p;
  const ValueType& out = TypeOf(function, op.outputs[0]);
  const ValueId weight_id = op.Find(is_conv || is_linear ? "weight" : "y")->values[0];
  const auto elems = static_cast<double>(out.elems()), flops = Flops(function, op);
  if (elems == 0 || out.dims.empty()) return p;
  if (is_conv) {  // weight [Cout, Cin / groups, kernel...]; x [N, Cin, spatial...]
    const ValueType& weight = TypeOf(function, weight_id);
    const auto in_channels = static_cast<double>(TypeOf(function, op.Find("x")->values[0]).dims[1]);
    p.count = std::max(1.0, in_channels / static_cast<double>(weight.dims[1]));  // groups
    p.out = static_cast<double>(weight.dims[0]) / p.count;
    p.rows = elems / static_cast<double>(weight.dims[0]);
  } else {
    p.out = static_cast<double>(out.dims.back());
    const bool is_constant = stored[weight_id] > 0;  // rows of all batches meet the same weight
    const auto rows = static_cast<double>(out.dims.size() >= 2 ? out.dims[out.dims.size() - 2] : 1);
    p.rows = is_linear || is_constant ? elems / p.out : rows;
    p.count = elems / (p.out * p.rows);
  }
  p.in = flops / (2 * p.rows * p.out * p.count);
  p.weight_bytes = stored[weight_id] > 0 ? stored[weight_id] / p.count : 2 * p.in * p.out;
  return p;
}

// Bytes of one operand's constant as it is streamed. A chip that cannot stream int8 keeps such weights unfolded to
// fp16; palettes stream on every chip.
double StreamedBytes(const Op& op, const Operand& operand, const ValueType& type, const NpuSpec& spec) {
  const bool unfolds = op.kind == OpKind::kConstexprAffineDequantize && !spec.streams_int8;
  return unfolds && operand.param == "quantized_data" ? DenseF16Bytes(type) : static_cast<double>(type.bytes());
}

}  // namespace

void AddProduct(const Product& p, const NpuSpec& spec, Work& work) {
  if (p.rows <= 0 || p.count <= 0) return;
  const double flops = 2 * p.rows * p.in * p.out * p.count;
  work.flops += flops;
  work.paced_flops += flops * (1 + spec.half_rate_rows.value / p.rows) / (p.is_int8 ? spec.int8_speedup.value : 1);
  // One operand that fits stays on the chip while the other passes once. Otherwise a part of one stays at a time, and
  // the other passes once for every part.
  const double x = 2 * p.rows * p.in, dense = 2 * p.in * p.out, fits = spec.on_chip_bytes.value;
  work.moved_bytes +=
      p.count * std::min(p.weight_bytes * std::max(0.0, x / fits - 1), x * std::max(0.0, dense / fits - 1));
}

void AddScores(double scores, const NpuSpec& spec, Work& work) {
  work.moved_bytes += 2 * scores * spec.score_moves.value;
}

Work CountWork(const Graph& graph, const Function& function, const NpuSpec& spec) {
  Work work;
  std::vector<bool> counted(graph.constants.size(), false);
  std::vector<double> stored(function.values.size(), 0);  // bytes of a weight, folded
  for (const Op& op : function.ops) {
    const bool is_constexpr = IsConstexpr(op.kind);
    for (const Operand& operand : op.operands) {
      for (const ValueId id : operand.values) {
        const uint32_t constant = function.values[id].constant;
        if (constant == kNoConstant) continue;
        const double bytes = StreamedBytes(op, operand, TypeOf(function, id), spec);
        stored[is_constexpr ? op.outputs[0] : id] += is_constexpr || stored[id] == 0 ? bytes : 0;
        if (!counted[constant]) work.weight_bytes += bytes;
        counted[constant] = true;
      }
    }
    const ValueType& out = TypeOf(function, op.outputs[0]);
    if (op.kind == OpKind::kConstexprLutToDense) work.unpacked_bytes += DenseF16Bytes(out);
    if (is_constexpr) continue;
    const Product product = MatrixProductOf(function, op, stored);
    if (product.count > 0) {
      AddProduct(product, spec, work);
      continue;
    }
    const double flops = Flops(function, op);
    work.flops += flops;
    work.paced_flops += flops;
    if (op.kind == OpKind::kSoftmax) AddScores(static_cast<double>(out.elems()), spec, work);
    if (op.kind == OpKind::kScaledDotProductAttention) {
      AddScores(flops / 4 / static_cast<double>(out.dims.back()), spec, work);
    }
  }
  for (const ValueId id : function.inputs) work.io_bytes += static_cast<double>(TypeOf(function, id).bytes());
  for (const ValueId id : function.outputs) work.io_bytes += static_cast<double>(TypeOf(function, id).bytes());
  return work;
}

CostParts PartsOf(const Work& work, const NpuSpec& spec, NpuPath path) {
  const bool direct = path == NpuPath::kDirect;
  CostParts parts;
  parts.floor = (direct ? spec.direct_dispatch_seconds : spec.dispatch_seconds).value;
  parts.io = work.io_bytes / (direct ? spec.host_copy_bytes_per_second : spec.io_bytes_per_second).value;
  parts.moves = work.moved_bytes / spec.weight_bytes_per_second.value;
  parts.compute = work.paced_flops / spec.flops_per_second.value;
  parts.weights = std::max(work.weight_bytes / spec.weight_bytes_per_second.value,
                           work.unpacked_bytes / spec.unpack_bytes_per_second.value);
  return parts;
}

Cost DispatchCost(const Work& work, const NpuSpec& spec, NpuPath path) {
  const double seconds = PartsOf(work, spec, path).Seconds();
  // Rates over the whole dispatch: during the floor the engine is lit but idle.
  const double joules = spec.watts_base.value * seconds + spec.watts_per_tflops.value * work.flops / 1e12 +
                        spec.watts_per_gbps.value * (work.weight_bytes + work.moved_bytes) / 1e9;
  return {seconds, joules};
}

Cost CpuExpertCost(double rows, double flops_per_row, double weight_bytes, const NpuSpec& spec) {
  if (rows <= 0) return {};
  const double seconds =
      rows * flops_per_row / spec.cpu_flops_per_second.value + weight_bytes / spec.cpu_bytes_per_second.value;
  return {seconds, seconds * spec.cpu_watts.value};
}

}  // namespace npumoe
