// SPDX-License-Identifier: Apache-2.0
// Types of ops that work along axes.
#include <algorithm>

#include "graph/infer.h"

namespace npumoe {
namespace {

Dims WithoutAxes(const Dims& dims, const std::vector<size_t>& axes, bool keep_dims) {
  Dims out;
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    const bool reduced = std::find(axes.begin(), axes.end(), axis) != axes.end();
    if (!reduced) out.push_back(dims[axis]);
    if (reduced && keep_dims) out.push_back(1);
  }
  return out;
}

}  // namespace

Result<Types> InferSoftmax(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Float("x"));
  NM_TRY(in.Axis("axis", x->dims.size()));
  return Types{*x};
}

Result<Types> InferReduce(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Number("x"));
  NM_TRY_VAR(const auto axes, in.Axes("axes", x->dims.size()));
  NM_TRY_VAR(const bool keep_dims, in.Bool("keep_dims"));
  return Types{{x->elem, WithoutAxes(x->dims, axes, keep_dims)}};
}

Result<Types> InferArgmax(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Number("x"));
  NM_TRY_VAR(const size_t axis, in.Axis("axis", x->dims.size()));
  NM_TRY_VAR(const bool keep_dims, in.Bool("keep_dims"));
  return Types{{ElemType::kI32, WithoutAxes(x->dims, {axis}, keep_dims)}};
}

Result<Types> InferLayerNorm(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Float("x"));
  NM_TRY_VAR(const auto axes, in.Axes("axes", x->dims.size()));
  NM_TRY(CheckFloatScalar(in, "epsilon"));
  Dims wanted;
  for (const size_t axis : axes) wanted.push_back(x->dims[axis]);
  for (const std::string_view param : {"gamma", "beta"}) {
    if (!in.Has(param)) continue;
    NM_TRY_VAR(const ValueType* type, in.Float(param));
    NM_TRY(in.CheckCompileTime(param));
    if (type->dims != wanted) {
      return in.Fail(param, fmt::format("wanted the shape [{}] of x along axes, got {}", fmt::join(wanted, ", "),
                                        type->ToString()));
    }
  }
  return Types{*x};
}

Result<Types> InferL2Norm(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Float("x"));
  if (x->dims.size() < 3) return in.Fail("x", fmt::format("rank {}, wanted 3 or more", x->dims.size()));
  NM_TRY(CheckFloatScalar(in, "epsilon"));
  return Types{*x};
}

Result<Types> InferCumsum(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Number("x"));
  NM_TRY(in.Axis("axis", x->dims.size()));
  NM_TRY(in.Bool("exclusive"));
  NM_TRY(in.Bool("reverse"));
  return Types{*x};
}

}  // namespace npumoe
