// SPDX-License-Identifier: Apache-2.0
// Types of convolutions, matrix products and attention.
#include <algorithm>

#include "graph/geometry.h"
#include "graph/infer.h"

namespace npumoe {
namespace {

// One float type on both sides; from CoreML7 a constant weight may have the other one.
Status CheckWeightType(OpReader& in, ElemType x, std::string_view param) {
  NM_TRY_VAR(const ValueType* weight, in.Float(param));
  if (weight->elem != x && !in.IsConstant(param)) {
    return in.Fail(param, fmt::format("wanted {} as x has, got {}", ToString(x), weight->ToString()));
  }
  return Ok{};
}

Status CheckBias(OpReader& in, size_t n) {
  if (!in.Has("bias")) return Ok{};
  NM_TRY_VAR(const ValueType* bias, in.Float("bias"));
  if (bias->dims != Dims{n}) return in.Fail("bias", fmt::format("wanted {} values, got {}", n, bias->ToString()));
  return in.CheckCompileTime("bias");
}

}  // namespace

Result<Types> InferConv(OpReader& in) {
  NM_TRY_VAR(const ConvShape shape, ReadConv(in));
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  NM_TRY(CheckWeightType(in, x->elem, "weight"));
  NM_TRY(CheckBias(in, shape.out_channels));
  ValueType out{x->elem, {shape.batch, shape.out_channels}};
  for (const ConvAxis& axis : shape.axes) {
    out.dims.push_back(axis.out);
    // Core ML takes a weight computed at run time, but not with holes in it.
    if (axis.dilation != 1 && !in.CheckCompileTime("weight").ok()) {
      return in.Fail("weight", "is a run-time value, wanted a constant where dilations are not 1");
    }
  }
  return Types{out};
}

Result<Types> InferLinear(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Float("x"));
  NM_TRY_VAR(const ValueType* weight, in.Float("weight"));
  NM_TRY(CheckWeightType(in, x->elem, "weight"));
  NM_TRY(in.CheckCompileTime("weight"));
  if (weight->dims.size() != 2) return in.Fail("weight", fmt::format("rank {}, wanted 2", weight->dims.size()));
  if (x->dims.empty() || x->dims.back() != weight->dims[1]) {
    return in.Fail("weight", fmt::format("{} does not fit x {}", weight->ToString(), x->ToString()));
  }
  NM_TRY(CheckBias(in, weight->dims[0]));
  ValueType out = *x;
  out.dims.back() = weight->dims[0];
  return Types{out};
}

Result<Types> InferMatMul(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Number("x"));
  NM_TRY_VAR(const ValueType* y, in.Number("y"));
  NM_TRY_VAR(const bool transpose_x, in.Bool("transpose_x"));
  NM_TRY_VAR(const bool transpose_y, in.Bool("transpose_y"));
  const bool floats = IsFloat(x->elem) && IsFloat(y->elem);
  if (x->elem != y->elem && !(floats && (in.IsConstant("x") || in.IsConstant("y")))) {
    return in.Fail("y", fmt::format("wanted {} as x has, got {}", ToString(x->elem), y->ToString()));
  }
  if (x->dims.empty() || y->dims.empty()) return in.Fail(x->dims.empty() ? "x" : "y", "is a scalar, wanted a matrix");
  if (transpose_x && x->dims.size() == 1) return in.Fail("transpose_x", "is true for an x of rank 1");
  if (transpose_y && y->dims.size() == 1) return in.Fail("transpose_y", "is true for a y of rank 1");
  // A vector is a row on the left and a column on the right, and its axis goes away again.
  Dims a = x->dims, b = y->dims;
  if (a.size() == 1) a.insert(a.begin(), 1);
  if (b.size() == 1) b.push_back(1);
  if (transpose_x) std::swap(a[a.size() - 1], a[a.size() - 2]);
  if (transpose_y) std::swap(b[b.size() - 1], b[b.size() - 2]);
  if (a.back() != b[b.size() - 2]) {
    return in.Fail("y", fmt::format("{} rows, wanted {} as x has columns ({} times {})", b[b.size() - 2], a.back(),
                                    x->ToString(), y->ToString()));
  }
  // The type is the run-time side's where a constant differs.
  ValueType out{in.IsConstant("x") ? y->elem : x->elem, {}};
  const std::span<const size_t> lead_a(a.data(), a.size() - 2), lead_b(b.data(), b.size() - 2);
  if (!BroadcastDims(lead_a, lead_b, out.dims)) {
    return in.Fail("y", fmt::format("{} does not broadcast with {}", y->ToString(), x->ToString()));
  }
  if (x->dims.size() > 1) out.dims.push_back(a[a.size() - 2]);
  if (y->dims.size() > 1) out.dims.push_back(b.back());
  return Types{out};
}

Result<Types> InferEinsum(OpReader& in) {
  NM_TRY_VAR(const auto values, in.List("values"));
  NM_TRY_VAR(const EinsumLabels labels, ReadEinsum(in));
  if (values.size() != 2) return in.Fail("values", fmt::format("has {} values, wanted 2", values.size()));
  const ValueType &x = *values[0], &y = *values[1];
  if (!IsFloat(x.elem) || x.elem != y.elem) {
    return in.Fail("values", fmt::format("wanted one float type, got {} and {}", x.ToString(), y.ToString()));
  }
  if (x.dims.size() != labels.x.size() || y.dims.size() != labels.y.size()) {
    return in.Fail("values", fmt::format("wanted rank {}, got {} and {}", labels.x.size(), x.ToString(), y.ToString()));
  }
  ValueType out{x.elem, {}};
  for (size_t i = 0; i < labels.y.size(); ++i) {
    const size_t in_x = labels.x.find(labels.y[i]);
    if (in_x != std::string::npos && x.dims[in_x] != y.dims[i]) {
      return in.Fail("values",
                     fmt::format("axis {} of {} does not fit axis {} of {}", in_x, x.ToString(), i, y.ToString()));
    }
  }
  for (const char label : labels.out) {
    const size_t in_x = labels.x.find(label);
    out.dims.push_back(in_x != std::string::npos ? x.dims[in_x] : y.dims[labels.y.find(label)]);
  }
  return Types{out};
}

Result<Types> InferAttention(OpReader& in) {
  NM_TRY_VAR(const ValueType* query, in.Float("query"));
  const size_t rank = query->dims.size();
  if (rank < 3) return in.Fail("query", fmt::format("rank {}, wanted 3 or more", rank));
  NM_TRY_VAR(const ValueType* key, in.Type("key"));
  NM_TRY_VAR(const ValueType* value, in.Type("value"));
  if (key->dims.size() != rank) return in.Fail("key", fmt::format("rank {}, wanted {}", key->dims.size(), rank));
  if (value->dims.size() != rank) return in.Fail("value", fmt::format("rank {}, wanted {}", value->dims.size(), rank));
  const size_t kv = key->dims[rank - 2];
  ValueType wanted = *query;
  wanted.dims[rank - 2] = kv;
  NM_TRY(in.Expect("key", wanted));
  wanted.dims[rank - 1] = value->dims[rank - 1];
  NM_TRY(in.Expect("value", wanted));
  if (in.Has("attn_mask")) {
    NM_TRY_VAR(const ValueType* mask, in.Type("attn_mask"));
    if (mask->elem != ElemType::kBool && mask->elem != query->elem) {
      return in.Fail("attn_mask", fmt::format("wanted bool or {}, got {}", ToString(query->elem), mask->ToString()));
    }
    Dims scores = query->dims, joined;
    scores[rank - 1] = kv;
    if (!BroadcastDims(mask->dims, scores, joined) || joined != scores) {
      return in.Fail("attn_mask", fmt::format("{} does not broadcast to the scores [{}]", mask->ToString(),
                                              fmt::join(scores, ", ")));
    }
  }
  ValueType out = *query;
  out.dims[rank - 1] = value->dims[rank - 1];
  return Types{out};
}

}  // namespace npumoe
