// SPDX-License-Identifier: Apache-2.0
#include "graph/infer.h"

namespace npumoe {
namespace {

Result<Types> InferArithmetic(OpReader& in, OpKind kind) {
  switch (kind) {
    case OpKind::kSilu:
    case OpKind::kSigmoid:
    case OpKind::kRelu:
    case OpKind::kTanh:
    case OpKind::kExp:
    case OpKind::kSin:
    case OpKind::kCos:
    case OpKind::kSqrt:
      return InferUnary(in);
    case OpKind::kSquare:
      return InferSquare(in);
    case OpKind::kRsqrt:
      return InferRsqrt(in);
    case OpKind::kGelu:
      return InferGelu(in);
    case OpKind::kMul:
    case OpKind::kAdd:
    case OpKind::kSub:
    case OpKind::kRealDiv:
    case OpKind::kMaximum:
    case OpKind::kMinimum:
    case OpKind::kPow:
      return InferBinary(in);
    case OpKind::kLess:
    case OpKind::kLessEqual:
    case OpKind::kGreater:
    case OpKind::kGreaterEqual:
    case OpKind::kEqual:
    case OpKind::kNotEqual:
      return InferCompare(in);
    case OpKind::kLogicalAnd:
    case OpKind::kLogicalOr:
    case OpKind::kLogicalXor:
      return InferLogical(in);
    case OpKind::kReduceMean:
    case OpKind::kReduceSum:
    case OpKind::kReduceMax:
    case OpKind::kReduceMin:
    case OpKind::kReduceSumSquare:
    case OpKind::kReduceProd:
    case OpKind::kReduceL1Norm:
    case OpKind::kReduceL2Norm:
    case OpKind::kReduceLogSum:
    case OpKind::kReduceLogSumExp:
      return InferReduce(in);
    default:
      return in.Fail("", "has no type inference");
  }
}

struct Rule {
  OpKind kind;
  Result<Types> (*infer)(OpReader&);
};

constexpr Rule kRules[] = {
    {OpKind::kConv, InferConv},
    {OpKind::kLinear, InferLinear},
    {OpKind::kMatMul, InferMatMul},
    {OpKind::kEinsum, InferEinsum},
    {OpKind::kLogicalNot, InferLogicalNot},
    {OpKind::kSelect, InferSelect},
    {OpKind::kClip, InferClip},
    {OpKind::kSoftmax, InferSoftmax},
    {OpKind::kReduceArgmax, InferArgmax},
    {OpKind::kReduceArgmin, InferArgmax},
    {OpKind::kLayerNorm, InferLayerNorm},
    {OpKind::kL2Norm, InferL2Norm},
    {OpKind::kReshape, InferReshape},
    {OpKind::kTranspose, InferTranspose},
    {OpKind::kExpandDims, InferExpandDims},
    {OpKind::kSqueeze, InferSqueeze},
    {OpKind::kConcat, InferConcat},
    {OpKind::kStack, InferStack},
    {OpKind::kSplit, InferSplit},
    {OpKind::kSliceByIndex, InferSliceByIndex},
    {OpKind::kSliceBySize, InferSliceBySize},
    {OpKind::kSliceUpdate, InferSliceUpdate},
    {OpKind::kTile, InferTile},
    {OpKind::kPad, InferPad},
    {OpKind::kFill, InferFill},
    {OpKind::kBandPart, InferBandPart},
    {OpKind::kCumsum, InferCumsum},
    {OpKind::kGather, InferGather},
    {OpKind::kGatherAlongAxis, InferGatherAlongAxis},
    {OpKind::kGatherNd, InferGatherNd},
    {OpKind::kScatter, InferScatter},
    {OpKind::kScatterAlongAxis, InferScatterAlongAxis},
    {OpKind::kScatterNd, InferScatterNd},
    {OpKind::kTopK, InferTopK},
    {OpKind::kArgsort, InferArgsort},
    {OpKind::kCast, InferCast},
    {OpKind::kIdentity, InferIdentity},
    {OpKind::kScaledDotProductAttention, InferAttention},
    {OpKind::kQuantize, InferQuantize},
    {OpKind::kDequantize, InferDequantize},
    {OpKind::kConstexprAffineDequantize, InferAffineDequantize},
    {OpKind::kConstexprLutToDense, InferLutToDense},
    {OpKind::kConstexprSparseToDense, InferSparseToDense},
    {OpKind::kConstexprCast, InferConstexprCast},
    {OpKind::kConstexprBlockwiseShiftScale, InferBlockwiseShiftScale},
    {OpKind::kConstexprLutToSparse, InferLutToSparse},
    {OpKind::kConstexprSparseBlockwiseShiftScale, InferSparseBlockwiseShiftScale},
};

Result<Types> InferByFamily(OpReader& in) {
  for (const Rule& rule : kRules) {
    if (rule.kind == in.op().kind) return rule.infer(in);
  }
  return InferArithmetic(in, in.op().kind);
}

}  // namespace

Status CheckType(const ValueType& type, size_t max_rank, std::string_view subject) {
  if (type.dims.size() > max_rank) {
    return MakeError(Code::kInvalidArgument, "{}: rank {} of {}, at most {}", subject, type.dims.size(),
                     type.ToString(), max_rank);
  }
  size_t elems = 1;
  for (const size_t dim : type.dims) {
    if (dim == 0) return MakeError(Code::kInvalidArgument, "{}: empty, shape {}", subject, type.ToString());
    // Divides, so that no product of hostile dims wraps.
    if (dim > kMaxTensorBytes * 8 / BitsOf(type.elem) / elems) {
      return MakeError(Code::kInvalidArgument, "{}: {} is larger than {} bytes", subject, type.ToString(),
                       kMaxTensorBytes);
    }
    elems *= dim;
  }
  return Ok{};
}

Status CheckFloatScalar(OpReader& in, std::string_view param) {
  NM_TRY_VAR(const ValueType* type, in.Float(param));
  if (!type->dims.empty()) return in.Fail(param, fmt::format("wanted a scalar, got {}", type->ToString()));
  return in.CheckCompileTime(param);
}

Result<ValueType> BroadcastOperands(OpReader& in, std::string_view a, std::string_view b) {
  NM_TRY_VAR(const ValueType* x, in.Type(a));
  NM_TRY_VAR(const ValueType* y, in.Type(b));
  if (x->elem != y->elem) {
    return in.Fail(b, fmt::format("wanted {} as '{}' has, got {}", ToString(x->elem), a, y->ToString()));
  }
  ValueType out{x->elem, {}};
  if (!BroadcastDims(x->dims, y->dims, out.dims)) {
    return in.Fail(b, fmt::format("{} does not broadcast with {}", y->ToString(), x->ToString()));
  }
  return out;
}

Result<std::vector<ValueType>> InferTypes(const Graph& graph, const Function& function, const Op& op) {
  OpReader in(graph, function, op);
  NM_TRY_VAR(auto types, InferByFamily(in));
  NM_TRY(in.CheckAllRead());
  for (const ValueType& type : types) {
    const Status status = CheckType(type, kMaxGraphRank, "result");
    if (!status.ok()) return in.Fail("", status.error().message);
  }
  return types;
}

}  // namespace npumoe
