// SPDX-License-Identifier: Apache-2.0
// Ops that move fp16 values, and those that need not.
#include <algorithm>

#include "base/check.h"
#include "graph/array.h"
#include "graph/op_reader.h"
#include "kernels/half.h"
#include "npu/fast_ops.h"

namespace npumoe {
namespace {

// One value's share of the lines along the axis of a split or concat: `run` consecutive values of each.
struct Part {
  ValueId value = 0;
  size_t first = 0, run = 0;  // within a line
};

std::vector<Part> PartsOf(const Function& function, const std::vector<ValueId>& values, size_t axis) {
  std::vector<Part> parts;
  size_t first = 0;
  for (const ValueId id : values) {
    const AxisView view(function.values[id].type.dims, axis);
    parts.push_back({id, first, view.n * view.inner});
    first += view.n * view.inner;
  }
  return parts;
}

size_t AxisOf(const FastOp& op, size_t rank) {
  return OpReader(op.graph, op.function, op.op).Axis("axis", rank).value();
}

// Axes of a permutation with those joined that stay neighbours: dims of x, and for every axis of the result the axis of
// x it comes from.
struct Permutation {
  Dims dims;
  std::vector<size_t> from;

  Permutation(const Dims& x, const std::vector<size_t>& perm) {
    std::vector<size_t> kept;  // axes longer than 1, in the result's order
    for (const size_t axis : perm) {
      if (x[axis] != 1) kept.push_back(axis);
    }
    std::vector<size_t> sorted = kept;
    std::sort(sorted.begin(), sorted.end());
    std::vector<size_t> firsts;  // first axis of every joined run, in the result's order
    Dims lengths;
    for (size_t i = 0; i < kept.size(); ++i) {
      const auto rank_of = [&](size_t axis) { return std::find(sorted.begin(), sorted.end(), axis) - sorted.begin(); };
      if (i > 0 && rank_of(kept[i]) == rank_of(kept[i - 1]) + 1) {
        lengths.back() *= x[kept[i]];
      } else {
        firsts.push_back(kept[i]);
        lengths.push_back(x[kept[i]]);
      }
    }
    std::vector<size_t> order = firsts;
    std::sort(order.begin(), order.end());
    dims.resize(order.size());
    for (size_t i = 0; i < firsts.size(); ++i) {
      from.push_back(static_cast<size_t>(std::find(order.begin(), order.end(), firsts[i]) - order.begin()));
      dims[from.back()] = lengths[i];
    }
  }
};

}  // namespace

std::optional<AliasOf> FindAlias(const Graph& graph, const Function& function, const Op& op, size_t output) {
  const FastOp fast{graph, function, op};
  switch (op.kind) {
    case OpKind::kReshape:
    case OpKind::kExpandDims:
    case OpKind::kSqueeze:
    case OpKind::kIdentity:
      return AliasOf{fast.Id("x"), 0};
    case OpKind::kSplit: {
      const Dims& dims = fast.Type("x").dims;
      const size_t axis = AxisOf(fast, dims.size());
      if (AxisView(dims, axis).outer != 1) return std::nullopt;
      return AliasOf{fast.Id("x"), PartsOf(function, op.outputs, axis)[output].first};
    }
    default:
      return std::nullopt;
  }
}

std::optional<FastStep> MakeTranspose(const FastOp& op) {
  const Dims& x_dims = op.Type("x").dims;
  const Permutation p(x_dims, OpReader(op.graph, op.function, op.op).Axes("perm", x_dims.size()).value());
  const ValueId x = op.Id("x"), out = op.op.outputs[0];
  const size_t rank = p.dims.size(), elems = op.OutType().elems();
  if (rank <= 1) return FastStep{[=](const FastRun& run) { std::copy_n(run.values[x], elems, run.values[out]); }};
  // [..., R, C] to [..., C, R]: matrices turned in place of each other.
  const bool turns = (rank == 2) || (rank == 3 && p.from[0] == 0);
  if (turns) {
    const size_t rows = p.dims[rank - 2], cols = p.dims[rank - 1];
    return FastStep{[=](const FastRun& run) {
      run.shared.pool.ParallelFor(elems / (rows * cols), [&](size_t task, size_t) {
        HalfTranspose(run.values[x] + task * rows * cols, rows, cols, run.values[out] + task * rows * cols);
      });
    }};
  }
  // Anything else: a line of the result at a time.
  const Dims own = StridesOf(p.dims);
  Dims dims, strides;
  for (const size_t axis : p.from) {
    dims.push_back(p.dims[axis]);
    strides.push_back(own[axis]);
  }
  return FastStep{[=](const FastRun& run) {
    const size_t n = dims.back(), step = strides.back();
    run.shared.pool.ParallelFor(elems / n, [&](size_t line, size_t) {
      size_t offset = 0;
      for (size_t axis = rank - 1, rest = line; axis-- > 0; rest /= dims[axis])
        offset += rest % dims[axis] * strides[axis];
      const uint16_t* const from = run.values[x] + offset;
      uint16_t* const to = run.values[out] + line * n;
      for (size_t i = 0; i < n; ++i) to[i] = from[i * step];
    });
  }};
}

std::optional<FastStep> MakeConcat(const FastOp& op) {
  const Dims& dims = op.OutType().dims;
  OpReader reader(op.graph, op.function, op.op);
  if (reader.Bool("interleave").value()) return std::nullopt;
  const size_t axis = AxisOf(op, dims.size());
  const AxisView view(dims, axis);
  const size_t lines = view.outer, line = view.n * view.inner;
  const std::vector<Part> parts = PartsOf(op.function, op.op.Find("values")->values, axis);
  const ValueId out = op.op.outputs[0];
  return FastStep{[=](const FastRun& run) {
    run.shared.pool.ParallelFor(lines * parts.size(), [&](size_t task, size_t) {
      const Part& part = parts[task % parts.size()];
      const size_t i = task / parts.size();
      std::copy_n(run.values[part.value] + i * part.run, part.run, run.values[out] + i * line + part.first);
    });
  }};
}

std::optional<FastStep> MakeSplit(const FastOp& op) {
  const Dims& dims = op.Type("x").dims;
  const size_t axis = AxisOf(op, dims.size());
  const AxisView view(dims, axis);
  const size_t lines = view.outer, line = view.n * view.inner;
  const std::vector<Part> parts = PartsOf(op.function, op.op.outputs, axis);
  const ValueId x = op.Id("x");
  return FastStep{[=](const FastRun& run) {
    run.shared.pool.ParallelFor(lines * parts.size(), [&](size_t task, size_t) {
      const Part& part = parts[task % parts.size()];
      const size_t i = task / parts.size();
      std::copy_n(run.values[x] + i * line + part.first, part.run, run.values[part.value] + i * part.run);
    });
  }};
}

}  // namespace npumoe
