// SPDX-License-Identifier: Apache-2.0
#include "npu/fast_executor.h"

#include <algorithm>
#include <deque>
#include <map>

#include "base/check.h"
#include "graph/op_run.h"
#include "kernels/matmul.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

void RoundToF16(std::vector<float>& values) {
  for (float& v : values) v = F16ToF32(F32ToF16(v));
}

bool IsConstexpr(const Op& op) { return MilName(op.kind).starts_with("constexpr_"); }

// out[c, r] = in[r, c]
void TransposeInto(const float* in, size_t rows, size_t cols, float* out) {
  constexpr size_t kTile = 16;  // a tile of both sides stays in the L1 cache
  for (size_t r0 = 0; r0 < rows; r0 += kTile) {
    for (size_t c0 = 0; c0 < cols; c0 += kTile) {
      for (size_t r = r0; r < std::min(rows, r0 + kTile); ++r) {
        for (size_t c = c0; c < std::min(cols, c0 + kTile); ++c) out[c * rows + r] = in[r * cols + c];
      }
    }
  }
}

size_t MaxInner(const Graph& graph) {
  size_t inner = 1;
  for (const Function& function : graph.functions) {
    for (const Value& value : function.values) {
      for (const size_t extent : value.type.dims) inner = std::max(inner, extent);
    }
  }
  return inner;
}

}  // namespace

struct FastExecutor::Impl {
  Impl(const Graph& g, ThreadPool& pool) : graph(g), matmul(pool, MaxInner(g)) {}

  const Graph& graph;
  MatMul matmul;
  // Weights that a constexpr op decodes, as fp16, by (function, value).
  std::map<std::pair<const Function*, ValueId>, std::vector<uint16_t>> decoded;
  std::vector<float> rows, out_rows, turned;
  std::vector<MatMulJob> jobs;

  // fp16 bits of a weight: a constant's own bytes, or what its constexpr op gave.
  const uint16_t* Weight(const Function& function, ValueId id) const {
    const Value& value = function.values[id];
    if (value.is_constant()) {
      if (value.type.elem != ElemType::kF16) return nullptr;
      return reinterpret_cast<const uint16_t*>(graph.constants[value.constant].data.data());
    }
    return Decoded(function, id);
  }

  const uint16_t* Decoded(const Function& function, ValueId id) const {
    const auto found = decoded.find({&function, id});
    return found == decoded.end() ? nullptr : found->second.data();
  }

  bool RunConv(const Function& function, const Op& op, OpReader& in, const Array& x, Array& y);
  bool RunMatMul(OpReader& in, const Array& x, const Array& y, Array& out);
};

// 1x1 convolution of [1, C, 1, S] without bias: one product per group. False: not of that form.
bool FastExecutor::Impl::RunConv(const Function& function, const Op& op, OpReader& in, const Array& x, Array& y) {
  const ValueId weight_id = op.Find("weight")->values[0];
  const auto& w_dims = function.values[weight_id].type.dims;
  const auto& x_dims = x.type.dims;
  const uint16_t* const weight = Weight(function, weight_id);
  if (weight == nullptr || op.Find("bias") != nullptr || x_dims.size() != 4 || x_dims[0] != 1) return false;
  if (w_dims.size() != 4 || w_dims[2] != 1 || w_dims[3] != 1 || y.type.dims[2] != x_dims[2] ||
      y.type.dims[3] != x_dims[3]) {
    return false;
  }
  const auto groups_value = in.Int("groups");
  const auto strides = in.Ints("strides");
  if (!groups_value.ok() || !strides.ok() ||
      std::any_of(strides->begin(), strides->end(), [](int64_t s) { return s != 1; })) {
    return false;
  }
  const auto groups = static_cast<size_t>(*groups_value);
  const size_t c = x_dims[1], s = x_dims[2] * x_dims[3], o = w_dims[0], in_slice = w_dims[1], out_slice = o / groups;
  rows.resize(s * c);
  out_rows.resize(s * o);
  TransposeInto(x.floats.data(), c, s, rows.data());
  jobs.clear();
  for (size_t g = 0; g < groups; ++g) {
    const TensorView w{DType::kF16, Shape::Of(out_slice, in_slice),
                       reinterpret_cast<const std::byte*>(weight + g * out_slice * in_slice)};
    jobs.push_back({ConstMatView(rows.data() + g * in_slice, s, in_slice, c), w,
                    MatView{out_rows.data() + g * out_slice, s, out_slice, o}});
  }
  matmul.Run(jobs);
  TransposeInto(out_rows.data(), s, o, y.floats.data());
  return true;
}

// Batched product over equal leading dims. False: not of that form.
bool FastExecutor::Impl::RunMatMul(OpReader& in, const Array& x, const Array& y, Array& out) {
  const auto transpose_x = in.Bool("transpose_x"), transpose_y = in.Bool("transpose_y");
  const auto &xd = x.type.dims, &yd = y.type.dims;
  if (!transpose_x.ok() || !transpose_y.ok() || *transpose_x || xd.size() < 2 || xd.size() != yd.size()) return false;
  const size_t rank = xd.size();
  if (!std::equal(xd.begin(), xd.end() - 2, yd.begin())) return false;
  size_t batch = 1;
  for (size_t d = 0; d + 2 < rank; ++d) batch *= xd[d];
  const size_t m = xd[rank - 2], k = xd[rank - 1], n = *transpose_y ? yd[rank - 2] : yd[rank - 1];
  const float* weights = y.floats.data();
  if (!*transpose_y) {
    turned.resize(y.floats.size());
    for (size_t b = 0; b < batch; ++b) TransposeInto(weights + b * k * n, k, n, turned.data() + b * k * n);
    weights = turned.data();
  }
  jobs.clear();
  for (size_t b = 0; b < batch; ++b) {
    const TensorView w{DType::kF32, Shape::Of(n, k), reinterpret_cast<const std::byte*>(weights + b * k * n)};
    jobs.push_back(
        {ConstMatView(x.floats.data() + b * m * k, m, k, k), w, MatView{out.floats.data() + b * m * n, m, n, n}});
  }
  matmul.Run(jobs);
  return true;
}

Result<std::unique_ptr<FastExecutor>> FastExecutor::Make(const Graph& graph, ThreadPool& pool) {
  auto impl = std::make_unique<Impl>(graph, pool);
  for (const Function& function : graph.functions) {
    for (const Op& op : function.ops) {
      if (!IsConstexpr(op)) continue;
      NM_TRY_VAR(const std::vector<Array> results,
                 npumoe::RunOp(graph, function, op, std::vector<const Array*>(function.values.size()), true));
      const std::vector<float>& values = results[0].floats;
      std::vector<uint16_t> halves(values.size());
      std::transform(values.begin(), values.end(), halves.begin(), F32ToF16);
      impl->decoded.emplace(std::pair(&function, op.outputs[0]), std::move(halves));
    }
  }
  return std::unique_ptr<FastExecutor>(new FastExecutor(std::move(impl)));
}

Status FastExecutor::Run(const Function& function, std::span<const TensorRef> inputs,
                         std::span<const MutableTensorRef> outputs) {
  std::deque<Array> arrays;  // stable addresses
  std::vector<const Array*> values(function.values.size(), nullptr);
  const auto keep = [&](ValueId id, Array array) {
    arrays.push_back(std::move(array));
    values[id] = &arrays.back();
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    Array array{function.values[function.inputs[i]].type, std::vector<float>(inputs[i].elems), {}};
    std::transform(inputs[i].data, inputs[i].data + inputs[i].elems, array.floats.begin(), F16ToF32);
    keep(function.inputs[i], std::move(array));
  }
  for (const Op& op : function.ops) {
    if (IsConstexpr(op)) continue;
    const auto value = [&](std::string_view param) { return values[op.Find(param)->values[0]]; };
    if (op.kind == OpKind::kConv || op.kind == OpKind::kMatMul) {
      const ValueType& type = function.values[op.outputs[0]].type;
      Array y{type, std::vector<float>(type.elems()), {}};
      OpReader reader(impl_->graph, function, op);
      const bool conv = op.kind == OpKind::kConv;
      const bool both = !conv && value("x") != nullptr && value("y") != nullptr;
      const bool fast = conv ? impl_->RunConv(function, op, reader, *value("x"), y)
                             : both && impl_->RunMatMul(reader, *value("x"), *value("y"), y);
      if (fast) {
        RoundToF16(y.floats);
        keep(op.outputs[0], std::move(y));
        continue;
      }
    }
    // A decoded weight may feed an op that has no fast form.
    for (const Operand& operand : op.operands) {
      for (const ValueId id : operand.values) {
        const uint16_t* const halves = values[id] == nullptr ? impl_->Decoded(function, id) : nullptr;
        if (halves == nullptr) continue;
        Array array{function.values[id].type, std::vector<float>(function.values[id].type.elems()), {}};
        std::transform(halves, halves + array.floats.size(), array.floats.begin(), F16ToF32);
        keep(id, std::move(array));
      }
    }
    NM_TRY_VAR(std::vector<Array> results, npumoe::RunOp(impl_->graph, function, op, values, true));
    for (size_t i = 0; i < results.size(); ++i) keep(op.outputs[i], std::move(results[i]));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::vector<float>& floats = values[function.outputs[i]]->floats;
    std::transform(floats.begin(), floats.end(), outputs[i].data, F32ToF16);
  }
  return Ok{};
}

FastExecutor::FastExecutor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FastExecutor::~FastExecutor() = default;

}  // namespace npumoe
