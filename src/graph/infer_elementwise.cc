// SPDX-License-Identifier: Apache-2.0
// Types of ops that work element by element.
#include "graph/infer.h"

namespace npumoe {
namespace {

// Scale (and zero point) of quantize and dequantize against a tensor of shape `dims`.
Status CheckScale(OpReader& in, std::span<const size_t> dims) {
  NM_TRY_VAR(const ValueType* scale, in.Float("scale"));
  NM_TRY(in.CheckCompileTime("scale"));
  if (scale->dims.size() > 1) {
    return in.Fail("scale", fmt::format("wanted a scalar or a vector, got {}", scale->ToString()));
  }
  if (scale->dims.size() == 1) {
    NM_TRY_VAR(const size_t axis, in.Axis("axis", dims.size()));
    if (scale->dims[0] != dims[axis]) {
      return in.Fail("scale", fmt::format("has {} values, axis {} has {}", scale->dims[0], axis, dims[axis]));
    }
  } else if (in.Has("axis")) {
    NM_TRY(in.Int("axis"));
  }
  if (in.Has("zero_point")) NM_TRY(in.CheckCompileTime("zero_point"));
  return Ok{};
}

}  // namespace

Result<Types> InferUnary(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Float("x"));
  return Types{*x};
}

Result<Types> InferSquare(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Number("x"));
  return Types{*x};
}

Result<Types> InferRsqrt(OpReader& in) {
  NM_TRY(CheckFloatScalar(in, "epsilon"));
  return InferUnary(in);
}

Result<Types> InferGelu(OpReader& in) {
  NM_TRY_VAR(const auto mode, in.String("mode"));
  if (mode != "EXACT" && mode != "TANH_APPROXIMATION" && mode != "SIGMOID_APPROXIMATION") {
    return in.Fail("mode", fmt::format("'{}', wanted EXACT, TANH_APPROXIMATION or SIGMOID_APPROXIMATION", mode));
  }
  return InferUnary(in);
}

Result<Types> InferBinary(OpReader& in) {
  NM_TRY(in.Number("x"));
  NM_TRY_VAR(const ValueType out, BroadcastOperands(in, "x", "y"));
  return Types{out};
}

Result<Types> InferCompare(OpReader& in) {
  NM_TRY(in.Number("x"));
  NM_TRY_VAR(const ValueType out, BroadcastOperands(in, "x", "y"));
  return Types{{ElemType::kBool, out.dims}};
}

Result<Types> InferLogical(OpReader& in) {
  NM_TRY_VAR(const ValueType out, BroadcastOperands(in, "x", "y"));
  if (out.elem != ElemType::kBool) return in.Fail("x", fmt::format("wanted bool, got {}", ToString(out.elem)));
  return Types{out};
}

Result<Types> InferLogicalNot(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  if (x->elem != ElemType::kBool) return in.Fail("x", fmt::format("wanted bool, got {}", x->ToString()));
  return Types{*x};
}

Result<Types> InferSelect(OpReader& in) {
  NM_TRY_VAR(const ValueType* cond, in.Type("cond"));
  if (cond->elem != ElemType::kBool) return in.Fail("cond", fmt::format("wanted bool, got {}", cond->ToString()));
  NM_TRY_VAR(ValueType out, BroadcastOperands(in, "a", "b"));
  if (out.elem == ElemType::kString) return in.Fail("a", "is a string, wanted numbers");
  const Dims values = out.dims;
  if (!BroadcastDims(cond->dims, values, out.dims)) {
    return in.Fail("cond", fmt::format("{} does not broadcast with {}", cond->ToString(), out.ToString()));
  }
  return Types{out};
}

Result<Types> InferClip(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Float("x"));
  for (const std::string_view param : {"alpha", "beta"}) {
    NM_TRY(CheckFloatScalar(in, param));
    NM_TRY(in.Expect(param, {x->elem, {}}));
  }
  return Types{*x};
}

Result<Types> InferCast(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  NM_TRY_VAR(const auto name, in.String("dtype"));
  const Result<ElemType> elem = ElemFromName(name);
  if (!elem.ok()) return in.Fail("dtype", elem.error().message);
  if (x->elem == ElemType::kString || BitsOf(x->elem) < 8) {
    return in.Fail("x", fmt::format("{} cannot be cast", x->ToString()));
  }
  return Types{{*elem, x->dims}};
}

Result<Types> InferIdentity(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  return Types{*x};
}

Result<Types> InferQuantize(OpReader& in) {
  NM_TRY_VAR(const ValueType* input, in.Float("input"));
  NM_TRY_VAR(const auto name, in.String("output_dtype"));
  const Result<ElemType> elem = ElemFromName(name);
  if (!elem.ok() || !IsByte(*elem)) return in.Fail("output_dtype", fmt::format("'{}', wanted int8 or uint8", name));
  NM_TRY(CheckScale(in, input->dims));
  NM_TRY_VAR(const ValueType* scale, in.Type("scale"));
  if (scale->elem != input->elem) {
    return in.Fail("scale",
                   fmt::format("wanted {} as the input has, got {}", ToString(input->elem), scale->ToString()));
  }
  if (in.Has("zero_point")) NM_TRY(in.Expect("zero_point", {*elem, scale->dims}));
  return Types{{*elem, input->dims}};
}

Result<Types> InferDequantize(OpReader& in) {
  NM_TRY_VAR(const ValueType* input, in.Type("input"));
  if (!IsByte(input->elem)) return in.Fail("input", fmt::format("wanted int8 or uint8, got {}", input->ToString()));
  NM_TRY(CheckScale(in, input->dims));
  NM_TRY_VAR(const ValueType* scale, in.Type("scale"));
  if (in.Has("zero_point")) NM_TRY(in.Expect("zero_point", {input->elem, scale->dims}));
  return Types{{scale->elem, input->dims}};
}

}  // namespace npumoe
