// SPDX-License-Identifier: Apache-2.0
// conv, linear and matmul by HalfProduct. A channel-first activation [C, S] is the right matrix as it lies in memory.
#include <algorithm>

#include "base/check.h"
#include "graph/array.h"
#include "graph/geometry.h"
#include "kernels/half.h"
#include "npu/fast_ops.h"

namespace npumoe {
namespace {

template <typename T>
const T* DataOf(const Graph& graph, uint32_t constant) {
  return reinterpret_cast<const T*>(graph.constants[constant].data.data());
}

// 1x1 convolution without bias: one product per image and group.
std::optional<FastStep> MakeConv(const FastOp& op) {
  OpReader reader(op.graph, op.function, op.op);
  const ConvShape shape = ReadConv(reader).value();
  if (op.Has("bias") || !op.IsHalf("x") || !op.IsHalf("weight")) return std::nullopt;
  size_t places = 1;
  for (const ConvAxis& axis : shape.axes) {
    if (axis.kernel != 1 || axis.stride != 1 || axis.pad_begin != 0 || axis.in != axis.out) return std::nullopt;
    places *= axis.in;
  }
  const size_t groups = shape.groups, m = shape.out_channels / groups, k = shape.in_channels / groups;
  const ValueId x = op.Id("x"), weight = op.Id("weight"), out = op.op.outputs[0];
  HalfLeft stored;
  if (const auto scaled = FindScaledBytes(op.graph, op.function, weight)) {
    stored.bytes = DataOf<int8_t>(op.graph, scaled->bytes);
    stored.scales = DataOf<uint16_t>(op.graph, scaled->scales);
  }
  return FastStep{[=, batch = shape.batch](const FastRun& run) {
    std::vector<HalfProductJob>& jobs = run.shared.jobs;
    jobs.clear();
    for (size_t image = 0; image < batch; ++image) {
      for (size_t group = 0; group < groups; ++group) {
        HalfLeft a;
        if (stored.bytes != nullptr) {
          a.bytes = stored.bytes + group * m * k;
          a.scales = stored.scales + group * m;
        } else {
          a.halves = run.values[weight] + group * m * k;
        }
        const size_t part = image * groups + group;
        jobs.push_back({a, run.values[x] + part * k * places, run.values[out] + part * m * places, m, k, places});
      }
    }
    run.shared.product.Run(jobs);
  }};
}

// Matrices turned on the way, one after the other in scratch.
void TurnAll(const FastRun& run, const uint16_t* from, size_t n, size_t rows, size_t cols, uint16_t* to) {
  run.shared.pool.ParallelFor(
      n, [&](size_t i, size_t) { HalfTranspose(from + i * rows * cols, rows, cols, to + i * rows * cols); });
}

// Equal leading axes, at least two axes each.
std::optional<FastStep> MakeMatMul(const FastOp& op) {
  OpReader reader(op.graph, op.function, op.op);
  const Dims &xd = op.Type("x").dims, &yd = op.Type("y").dims;
  if (!op.IsHalf("x") || !op.IsHalf("y") || xd.size() < 2 || xd.size() != yd.size()) return std::nullopt;
  const size_t rank = xd.size();
  if (!std::equal(xd.begin(), xd.end() - 2, yd.begin())) return std::nullopt;
  const bool turn_x = reader.Bool("transpose_x").value(), turn_y = reader.Bool("transpose_y").value();
  const size_t batch = ProductOf(std::span(xd).first(rank - 2));
  const size_t m = xd[rank - (turn_x ? 1 : 2)], k = xd[rank - (turn_x ? 2 : 1)], n = yd[rank - (turn_y ? 2 : 1)];
  const ValueId x = op.Id("x"), y = op.Id("y"), out = op.op.outputs[0];
  const size_t x_scratch = turn_x ? batch * m * k : 0, y_scratch = turn_y ? batch * k * n : 0;
  const auto step = [=](const FastRun& run) {
    const uint16_t *left = run.values[x], *right = run.values[y];
    if (turn_x) {
      TurnAll(run, left, batch, k, m, run.scratch);
      left = run.scratch;
    }
    if (turn_y) {
      TurnAll(run, right, batch, n, k, run.scratch + x_scratch);
      right = run.scratch + x_scratch;
    }
    std::vector<HalfProductJob>& jobs = run.shared.jobs;
    jobs.clear();
    for (size_t i = 0; i < batch; ++i) {
      jobs.push_back({{.halves = left + i * m * k}, right + i * k * n, run.values[out] + i * m * n, m, k, n});
    }
    run.shared.product.Run(jobs);
  };
  return FastStep{step, x_scratch + y_scratch};
}

// Without bias: rows of x times the turned weight.
std::optional<FastStep> MakeLinear(const FastOp& op) {
  if (op.Has("bias") || !op.IsHalf("x") || !op.IsHalf("weight")) return std::nullopt;
  const size_t n = op.Type("weight").dims[0], k = op.Type("weight").dims[1], m = op.Type("x").elems() / k;
  const ValueId x = op.Id("x"), weight = op.Id("weight"), out = op.op.outputs[0];
  const auto step = [=](const FastRun& run) {
    TurnAll(run, run.values[weight], 1, n, k, run.scratch);
    run.shared.jobs.assign({{{.halves = run.values[x]}, run.scratch, run.values[out], m, k, n}});
    run.shared.product.Run(run.shared.jobs);
  };
  return FastStep{step, n * k};
}

}  // namespace

// constexpr_affine_dequantize of int8 along axis 0, zero point 0: fp16(scale[row] * byte).
std::optional<ScaledBytes> FindScaledBytes(const Graph& graph, const Function& function, ValueId value) {
  const auto made = std::find_if(function.ops.begin(), function.ops.end(),
                                 [&](const Op& op) { return !op.outputs.empty() && op.outputs[0] == value; });
  if (made == function.ops.end() || made->kind != OpKind::kConstexprAffineDequantize) return std::nullopt;
  const FastOp op{graph, function, *made};
  const Value &bytes = op.ValueOf("quantized_data"), &scale = op.ValueOf("scale");
  if (!bytes.is_constant() || !scale.is_constant() || bytes.type.elem != ElemType::kI8) return std::nullopt;
  if (scale.type != ValueType{ElemType::kF16, {bytes.type.dims[0]}}) return std::nullopt;
  if (OpReader(graph, function, *made).Axis("axis", bytes.type.dims.size()).value() != 0) return std::nullopt;
  const std::optional<Array> zero = op.ConstantOf("zero_point");
  if (!zero || std::any_of(zero->ints.begin(), zero->ints.end(), [](int64_t z) { return z != 0; })) return std::nullopt;
  return ScaledBytes{bytes.constant, scale.constant};
}

std::optional<FastStep> MakeProduct(const FastOp& op) {
  if (op.op.kind == OpKind::kConv) return MakeConv(op);
  return op.op.kind == OpKind::kLinear ? MakeLinear(op) : MakeMatMul(op);
}

}  // namespace npumoe
