// SPDX-License-Identifier: Apache-2.0
#include "npu/fast_ops.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "graph/array.h"
#include "graph/builder.h"
#include "graph/op_run.h"
#include "kernels/half.h"

namespace npumoe {
namespace {

// Values that one task takes: some 10 us of work, against some 1 us to hand it out. assumed.
constexpr size_t kTaskElems = 16384;

size_t CeilDiv(size_t a, size_t b) { return (a + b - 1) / b; }

struct BinaryRule {
  OpKind kind;
  HalfBinaryOp op;
};
constexpr BinaryRule kBinaryRules[] = {
    {OpKind::kAdd, HalfBinaryOp::kAdd},         {OpKind::kSub, HalfBinaryOp::kSub},
    {OpKind::kMul, HalfBinaryOp::kMul},         {OpKind::kRealDiv, HalfBinaryOp::kDiv},
    {OpKind::kMaximum, HalfBinaryOp::kMaximum}, {OpKind::kMinimum, HalfBinaryOp::kMinimum},
};

constexpr OpKind kUnaryOps[] = {
    OpKind::kSilu, OpKind::kSigmoid, OpKind::kRelu,   OpKind::kTanh, OpKind::kExp,  OpKind::kSin,
    OpKind::kCos,  OpKind::kSqrt,    OpKind::kSquare, OpKind::kGelu, OpKind::kClip, OpKind::kRsqrt,
};

// Two operands over a broadcast shape, as few loops as possible: axes of length 1 dropped, neighbours joined where
// both operands go on. Of the innermost axis a stride is 0 or 1.
struct PairLoops {
  Dims dims, x_strides, y_strides;

  PairLoops(const Dims& out, const Dims& x, const Dims& y) {
    const Dims sx = BroadcastStrides(x, out), sy = BroadcastStrides(y, out);
    for (size_t axis = 0; axis < out.size(); ++axis) {
      if (out[axis] == 1) continue;
      const bool joins =
          !dims.empty() && x_strides.back() == sx[axis] * out[axis] && y_strides.back() == sy[axis] * out[axis];
      if (joins) {
        dims.back() *= out[axis];
        x_strides.back() = sx[axis];
        y_strides.back() = sy[axis];
      } else {
        dims.push_back(out[axis]);
        x_strides.push_back(sx[axis]);
        y_strides.push_back(sy[axis]);
      }
    }
    if (dims.empty()) dims = {1}, x_strides = y_strides = {0};
  }

  size_t inner() const { return dims.back(); }

  // Offset of row `row` of the outer axes in an operand.
  size_t RowOffset(const Dims& strides, size_t row) const {
    size_t offset = 0;
    for (size_t axis = dims.size() - 1; axis-- > 0;) {
      offset += row % dims[axis] * strides[axis];
      row /= dims[axis];
    }
    return offset;
  }
};

std::optional<FastStep> MakeBinary(const FastOp& op) {
  const auto rule = std::find_if(std::begin(kBinaryRules), std::end(kBinaryRules),
                                 [&](const auto& r) { return r.kind == op.op.kind; });
  if (rule == std::end(kBinaryRules) || !op.IsHalf("x") || !op.IsHalf("y")) return std::nullopt;
  const PairLoops loops(op.OutType().dims, op.Type("x").dims, op.Type("y").dims);
  const size_t inner = loops.inner(), rows = ProductOf(loops.dims) / inner;
  // Short rows go several to a task, long ones are cut.
  const size_t rows_per_task = std::max<size_t>(1, kTaskElems / inner), pieces = CeilDiv(inner, kTaskElems);
  const ValueId x = op.Id("x"), y = op.Id("y"), out = op.op.outputs[0];
  return FastStep{[=, kind = rule->op](const FastRun& run) {
    const uint16_t *const xs = run.values[x], *const ys = run.values[y];
    run.shared.pool.ParallelFor(CeilDiv(rows, rows_per_task) * pieces, [&](size_t task, size_t) {
      const size_t first = task / pieces * rows_per_task, begin = task % pieces * kTaskElems;
      const size_t n = std::min(kTaskElems, inner - begin);
      for (size_t row = first; row < std::min(rows, first + rows_per_task); ++row) {
        const HalfOperand a{xs + loops.RowOffset(loops.x_strides, row) + begin * loops.x_strides.back(),
                            loops.x_strides.back() == 0};
        const HalfOperand b{ys + loops.RowOffset(loops.y_strides, row) + begin * loops.y_strides.back(),
                            loops.y_strides.back() == 0};
        HalfBinary(kind, a, b, n, run.values[out] + row * inner + begin);
      }
    });
  }};
}

std::optional<FastStep> MakeUnary(const FastOp& op, FastShared& shared) {
  if (std::find(std::begin(kUnaryOps), std::end(kUnaryOps), op.op.kind) == std::end(kUnaryOps)) return std::nullopt;
  if (!op.IsHalf("x")) return std::nullopt;
  for (const Operand& operand : op.op.operands) {
    if (operand.param != "x" && !op.ValueOf(operand.param).is_constant()) return std::nullopt;
  }
  const uint16_t* const table = shared.Table(op);
  const ValueId x = op.Id("x"), out = op.op.outputs[0];
  const size_t n = op.OutType().elems();
  return FastStep{[=](const FastRun& run) {
    run.shared.pool.ParallelFor(CeilDiv(n, kTaskElems), [&](size_t task, size_t) {
      const size_t begin = task * kTaskElems;
      HalfLookup(table, run.values[x] + begin, std::min(kTaskElems, n - begin), run.values[out] + begin);
    });
  }};
}

// Along the last axis.
std::optional<FastStep> MakeSoftmax(const FastOp& op) {
  OpReader reader(op.graph, op.function, op.op);
  const Dims& dims = op.Type("x").dims;
  if (!op.IsHalf("x")) return std::nullopt;
  const AxisView view(dims, reader.Axis("axis", dims.size()).value());
  if (view.inner != 1) return std::nullopt;
  const size_t n = view.n, rows = view.outer, rows_per_task = std::max<size_t>(1, kTaskElems / n);
  const ValueId x = op.Id("x"), out = op.op.outputs[0];
  return FastStep{[=](const FastRun& run) {
    run.shared.pool.ParallelFor(CeilDiv(rows, rows_per_task), [&](size_t task, size_t thread) {
      std::vector<float>& scratch = run.shared.rows[thread];
      scratch.resize(std::max(scratch.size(), n));
      for (size_t row = task * rows_per_task; row < std::min(rows, (task + 1) * rows_per_task); ++row) {
        HalfSoftmax(run.values[x] + row * n, n, scratch.data(), run.values[out] + row * n);
      }
    });
  }};
}

// Along neighbouring axes in ascending order, with constant gains.
std::optional<FastStep> MakeLayerNorm(const FastOp& op) {
  OpReader reader(op.graph, op.function, op.op);
  const Dims& dims = op.Type("x").dims;
  const std::vector<size_t> axes = reader.Axes("axes", dims.size()).value();
  const std::optional<Array> epsilon = op.ConstantOf("epsilon");
  std::array<std::optional<Array>, 2> vectors;
  for (size_t i = 0; i < 2; ++i) {
    const std::string_view param = i == 0 ? "gamma" : "beta";
    if (!op.Has(param)) {
      vectors[i].emplace();
    } else if (!(vectors[i] = op.ConstantOf(param))) {
      return std::nullopt;
    }
  }
  for (size_t i = 1; i < axes.size(); ++i) {
    if (axes[i] != axes[i - 1] + 1) return std::nullopt;
  }
  if (!op.IsHalf("x") || !epsilon) return std::nullopt;
  HalfLayerNormArgs args;
  args.n = ProductOf(std::span(dims).subspan(axes.front(), axes.size()));
  args.stride = ProductOf(std::span(dims).subspan(axes.back() + 1));
  args.epsilon = NumberAt(*epsilon, 0);
  const size_t outer = ProductOf(std::span(dims).first(axes.front())), blocks = CeilDiv(args.stride, kLayerNormColumns);
  const ValueId x = op.Id("x"), out = op.op.outputs[0];
  return FastStep{[=, gamma = vectors[0]->floats, beta = vectors[1]->floats](const FastRun& run) {
    run.shared.pool.ParallelFor(outer * blocks, [&](size_t task, size_t) {
      HalfLayerNormArgs part = args;
      const size_t column = task % blocks * kLayerNormColumns, at = task / blocks * args.n * args.stride + column;
      part.columns = std::min(kLayerNormColumns, args.stride - column);
      part.gamma = gamma;
      part.beta = beta;
      HalfLayerNorm(part, run.values[x] + at, run.values[out] + at);
    });
  }};
}

// A reshape or the like whose result stands elsewhere than its operand.
std::optional<FastStep> MakeCopy(const FastOp& op) {
  if (!op.IsHalf("x")) return std::nullopt;
  const ValueId x = op.Id("x"), out = op.op.outputs[0];
  const size_t n = op.OutType().elems();
  return FastStep{[=](const FastRun& run) { std::copy_n(run.values[x], n, run.values[out]); }};
}

}  // namespace

uint16_t* FastShared::Reserve(size_t halves) {
  if (halves > memory_halves_) {
    memory_.reset();
    memory_.reset(CacheLineAllocator<uint16_t>().allocate(halves));
    memory_halves_ = halves;
  }
  return memory_.get();
}

const uint16_t* FastShared::Table(const FastOp& op) {
  constexpr size_t kPatterns = 65536;
  std::string key(MilName(op.op.kind));
  std::vector<std::pair<std::string_view, std::vector<ValueId>>> operands;
  GraphBuilder builder;
  builder.BeginFunction("table");
  const ValueId every = builder.Input("x", {ElemType::kF16, {kPatterns}});
  for (const Operand& operand : op.op.operands) {
    if (operand.param == "x") {
      operands.push_back({"x", {every}});
      continue;
    }
    const Constant& constant = op.graph.constants[op.ValueOf(operand.param).constant];
    const uint32_t copy = builder.AddConstant(constant.type, constant.data);
    operands.push_back({operand.param, {builder.UseConstant(copy, operand.param)}});
    key += " " + operand.param + "=" + constant.type.ToString() + ":";
    key.append(reinterpret_cast<const char*>(constant.data.data()), constant.data.size());
  }
  std::vector<uint16_t>& table = tables_[key];
  if (!table.empty()) return table.data();
  builder.Output("y", builder.Add(op.op.kind, std::move(operands))[0]);
  const Graph graph = std::move(builder).Finish().value();
  std::vector<Array> inputs(1);
  inputs[0].type = {ElemType::kF16, {kPatterns}};
  inputs[0].floats.resize(kPatterns);
  table.resize(kPatterns);
  for (size_t i = 0; i < kPatterns; ++i) table[i] = static_cast<uint16_t>(i);
  HalvesToFloats(table, inputs[0].floats.data());
  const std::vector<Array> results = RunReference(graph, graph.functions[0], inputs, Rounding::kF16).value();
  FloatsToHalves(results[0].floats, table.data());
  return table.data();
}

size_t FastShared::HostBytes() const {
  size_t floats = 0, table_halves = 0;
  for (const auto& row : rows) floats += row.capacity();
  for (const auto& [key, table] : tables_) table_halves += table.capacity();
  return product.scratch_bytes() + floats * sizeof(float) + (memory_halves_ + table_halves) * sizeof(uint16_t);
}

std::optional<Array> FastOp::ConstantOf(std::string_view param) const {
  const Value& value = ValueOf(param);
  if (!value.is_constant()) return std::nullopt;
  return ArrayOf(graph.constants[value.constant]);
}

std::optional<FastStep> MakeFastStep(const FastOp& op, FastShared& shared) {
  // Rounding and storage are those of fp16; whatever gives something else is the reference's.
  for (const ValueId id : op.op.outputs) {
    const ValueType& type = op.function.values[id].type;
    if (type.elem != ElemType::kF16 || type.elems() == 0) return std::nullopt;
  }
  switch (op.op.kind) {
    case OpKind::kConv:
    case OpKind::kLinear:
    case OpKind::kMatMul:
      return MakeProduct(op);
    case OpKind::kSoftmax:
      return MakeSoftmax(op);
    case OpKind::kLayerNorm:
      return MakeLayerNorm(op);
    case OpKind::kTranspose:
      return MakeTranspose(op);
    case OpKind::kConcat:
      return MakeConcat(op);
    case OpKind::kSplit:
      return MakeSplit(op);
    case OpKind::kReshape:
    case OpKind::kExpandDims:
    case OpKind::kSqueeze:
    case OpKind::kIdentity:
      return MakeCopy(op);
    default:
      break;
  }
  if (auto binary = op.Has("y") ? MakeBinary(op) : std::nullopt) return binary;
  return op.Has("x") ? MakeUnary(op, shared) : std::nullopt;
}

}  // namespace npumoe
