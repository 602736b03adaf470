// SPDX-License-Identifier: Apache-2.0
#include "graph/mlpackage/defaults.h"

#include <cstring>
#include <span>
#include <string>

#include "graph/op_reader.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

// What a parameter is when it is left out. "rank" is that of x.
enum class Kind {
  kInt,         // an int32 scalar
  kBool,        // a bool scalar
  kText,        // a string
  kFloat,       // a scalar of x's type
  kFloat32,     // a scalar of fp32
  kSpatial,     // an int32 per spatial axis of x
  kSpatialTwo,  // two int32 per spatial axis
  kRankInts,    // an int32 per axis
  kRankFlags,   // a bool per axis
  kAllAxes,     // 0, 1, ... of x
  kUnitAxes,    // the axes of x that have one element
  kZeroBias,    // a zero per output of `weight`
};

struct Default {
  OpKind op;
  std::string_view param;
  int opset;
  Kind kind;
  double number = 0;
  std::string_view text = {};
};

// Source: the defaults of coremltools' op definitions (iOS15 to iOS17) and the opset that brought each parameter.
constexpr Default kDefaults[] = {
    {OpKind::kConv, "strides", 5, Kind::kSpatial, 1},
    {OpKind::kConv, "pad_type", 5, Kind::kText, 0, "valid"},
    {OpKind::kConv, "pad", 5, Kind::kSpatialTwo, 0},
    {OpKind::kConv, "dilations", 5, Kind::kSpatial, 1},
    {OpKind::kConv, "groups", 5, Kind::kInt, 1},
    {OpKind::kLinear, "bias", 5, Kind::kZeroBias},
    {OpKind::kMatMul, "transpose_x", 5, Kind::kBool},
    {OpKind::kMatMul, "transpose_y", 5, Kind::kBool},
    {OpKind::kGelu, "mode", 5, Kind::kText, 0, "EXACT"},
    {OpKind::kRsqrt, "epsilon", 5, Kind::kFloat, 1e-12},
    {OpKind::kSoftmax, "axis", 5, Kind::kInt, -1},
    {OpKind::kReduceArgmax, "axis", 5, Kind::kInt, -1},
    {OpKind::kReduceArgmax, "keep_dims", 5, Kind::kBool},
    {OpKind::kReduceArgmin, "axis", 5, Kind::kInt, -1},
    {OpKind::kReduceArgmin, "keep_dims", 5, Kind::kBool},
    {OpKind::kLayerNorm, "axes", 5, Kind::kAllAxes},
    {OpKind::kLayerNorm, "epsilon", 5, Kind::kFloat, 1e-5},
    {OpKind::kL2Norm, "epsilon", 5, Kind::kFloat, 1e-6},
    {OpKind::kSqueeze, "axes", 5, Kind::kUnitAxes},
    {OpKind::kConcat, "interleave", 5, Kind::kBool},
    {OpKind::kSliceByIndex, "stride", 5, Kind::kRankInts, 1},
    {OpKind::kSliceByIndex, "begin_mask", 5, Kind::kRankFlags},
    {OpKind::kSliceByIndex, "end_mask", 5, Kind::kRankFlags},
    {OpKind::kSliceByIndex, "squeeze_mask", 5, Kind::kRankFlags},
    {OpKind::kSliceUpdate, "stride", 8, Kind::kRankInts, 1},
    {OpKind::kSliceUpdate, "begin_mask", 8, Kind::kRankFlags},
    {OpKind::kSliceUpdate, "end_mask", 8, Kind::kRankFlags},
    {OpKind::kSliceUpdate, "squeeze_mask", 8, Kind::kRankFlags},
    {OpKind::kGather, "axis", 5, Kind::kInt, 0},
    {OpKind::kGather, "batch_dims", 6, Kind::kInt, 0},
    {OpKind::kGather, "validate_indices", 7, Kind::kBool},
    {OpKind::kGatherAlongAxis, "axis", 5, Kind::kInt, 0},
    {OpKind::kGatherAlongAxis, "validate_indices", 7, Kind::kBool},
    {OpKind::kGatherNd, "batch_dims", 6, Kind::kInt, 0},
    {OpKind::kGatherNd, "validate_indices", 7, Kind::kBool},
    {OpKind::kScatter, "axis", 5, Kind::kInt, 0},
    {OpKind::kScatter, "mode", 5, Kind::kText, 0, "add"},
    {OpKind::kScatter, "validate_indices", 7, Kind::kBool},
    {OpKind::kScatterAlongAxis, "axis", 5, Kind::kInt, 0},
    {OpKind::kScatterAlongAxis, "mode", 5, Kind::kText, 0, "add"},
    {OpKind::kScatterAlongAxis, "validate_indices", 7, Kind::kBool},
    {OpKind::kScatterNd, "mode", 5, Kind::kText, 0, "add"},
    {OpKind::kScatterNd, "validate_indices", 7, Kind::kBool},
    {OpKind::kTopK, "k", 5, Kind::kInt, 1},
    {OpKind::kTopK, "axis", 5, Kind::kInt, -1},
    {OpKind::kTopK, "ascending", 5, Kind::kBool},
    {OpKind::kTopK, "sort", 6, Kind::kBool, 1},
    {OpKind::kTopK, "return_indices", 6, Kind::kBool, 1},
    {OpKind::kTopK, "output_indices_dtype", 7, Kind::kText, 0, "int32"},
    {OpKind::kArgsort, "axis", 5, Kind::kInt, -1},
    {OpKind::kArgsort, "ascending", 5, Kind::kBool},
    {OpKind::kCumsum, "axis", 5, Kind::kInt, 0},
    {OpKind::kCumsum, "exclusive", 5, Kind::kBool},
    {OpKind::kCumsum, "reverse", 5, Kind::kBool},
    {OpKind::kFill, "value", 5, Kind::kFloat32, 0},
    {OpKind::kBandPart, "lower", 5, Kind::kInt, -1},
    {OpKind::kBandPart, "upper", 5, Kind::kInt, -1},
    {OpKind::kPad, "mode", 5, Kind::kText, 0, "constant"},
    {OpKind::kPad, "constant_val", 5, Kind::kFloat, 0},
};

// The reductions share theirs.
constexpr Default kReduceDefaults[] = {
    {OpKind::kReduceSum, "axes", 5, Kind::kAllAxes},
    {OpKind::kReduceSum, "keep_dims", 5, Kind::kBool},
};

bool ReducesAxes(OpKind kind) {
  return MilName(kind).starts_with("reduce_") && kind != OpKind::kReduceArgmax && kind != OpKind::kReduceArgmin;
}

std::span<const Default> CandidatesFor(OpKind kind) {
  if (ReducesAxes(kind)) return kReduceDefaults;
  return kDefaults;
}

template <typename T>
std::vector<std::byte> BytesOf(std::span<const T> values) {
  std::vector<std::byte> bytes(values.size_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Constant MakeConstant(ElemType elem, std::vector<size_t> dims, std::vector<std::byte> data) {
  Constant constant;
  constant.type.elem = elem;
  constant.type.dims = std::move(dims);
  constant.data = std::move(data);
  return constant;
}

Constant FloatScalar(ElemType elem, double number) {
  const auto value = static_cast<float>(number);
  if (elem == ElemType::kF32) return MakeConstant(elem, {}, BytesOf(std::span<const float>(&value, 1)));
  if (elem != ElemType::kF16) return {};
  const uint16_t half = F32ToF16(value);
  return MakeConstant(elem, {}, BytesOf(std::span<const uint16_t>(&half, 1)));
}

Constant IntVector(const std::vector<int32_t>& values) {
  if (values.empty()) return {};  // graphs have no empty tensors
  return MakeConstant(ElemType::kI32, {values.size()}, BytesOf(std::span<const int32_t>(values)));
}

const ValueType* TypeOf(const Function& function, const Op& op, std::string_view param) {
  const Operand* operand = op.Find(param);
  if (operand == nullptr || operand->values.empty() || operand->values[0] >= function.values.size()) return nullptr;
  return &function.values[operand->values[0]].type;
}

// A constant without data stands for none.
bool IsNone(const Constant& constant) { return constant.data.empty(); }

// The axes of `x` that a default lists.
std::vector<int32_t> Axes(const ValueType& x, bool unit_only) {
  std::vector<int32_t> axes;
  for (size_t axis = 0; axis < x.dims.size(); ++axis) {
    if (!unit_only || x.dims[axis] == 1) axes.push_back(static_cast<int32_t>(axis));
  }
  return axes;
}

Constant MakeOfX(const Default& rule, const ValueType& x) {
  const auto number = static_cast<int32_t>(rule.number);
  const size_t rank = x.dims.size(), spatial = rank > 2 ? rank - 2 : 0;
  switch (rule.kind) {
    case Kind::kFloat:
      return FloatScalar(x.elem, rule.number);
    case Kind::kSpatial:
      return IntVector(std::vector<int32_t>(spatial, number));
    case Kind::kSpatialTwo:
      return IntVector(std::vector<int32_t>(2 * spatial, number));
    case Kind::kRankInts:
      return IntVector(std::vector<int32_t>(rank, number));
    case Kind::kRankFlags:
      if (rank == 0) return {};
      return MakeConstant(ElemType::kBool, {rank}, std::vector<std::byte>(rank));
    case Kind::kAllAxes:
      return IntVector(Axes(x, false));
    case Kind::kUnitAxes:
      return IntVector(Axes(x, true));
    default:
      return {};
  }
}

Constant Make(const Default& rule, const Function& function, const Op& op) {
  const auto number = static_cast<int32_t>(rule.number);
  switch (rule.kind) {
    case Kind::kInt:
      return MakeConstant(ElemType::kI32, {}, BytesOf(std::span<const int32_t>(&number, 1)));
    case Kind::kBool:
      return MakeConstant(ElemType::kBool, {}, {std::byte{rule.number != 0}});
    case Kind::kText:
      return MakeConstant(ElemType::kString, {}, BytesOf(std::span<const char>(rule.text.data(), rule.text.size())));
    case Kind::kFloat32:
      return FloatScalar(ElemType::kF32, rule.number);
    case Kind::kZeroBias: {
      const ValueType* weight = TypeOf(function, op, "weight");
      if (weight == nullptr || weight->dims.empty() || !IsFloat(weight->elem)) return {};
      const ValueType bias{weight->elem, {weight->dims[0]}};
      return MakeConstant(weight->elem, bias.dims, std::vector<std::byte>(bias.bytes()));
    }
    default: {
      const ValueType* x = TypeOf(function, op, "x");
      return x == nullptr ? Constant{} : MakeOfX(rule, *x);
    }
  }
}

}  // namespace

void FillDefaults(const Function& function, Op& op, int opset, const AddConstantFn& add) {
  for (const Default& rule : CandidatesFor(op.kind)) {
    if ((rule.op != op.kind && !ReducesAxes(op.kind)) || rule.opset > opset || op.Find(rule.param) != nullptr) continue;
    Constant constant = Make(rule, function, op);
    if (IsNone(constant)) continue;
    const ValueId id = add(rule.param, std::move(constant.type), std::move(constant.data));
    op.operands.push_back({std::string(rule.param), {id}});
  }
}

int OpsetOfParam(OpKind kind, std::string_view param) {
  for (const Default& rule : kDefaults) {
    if (rule.op == kind && rule.param == param) return rule.opset;
  }
  return 5;
}

}  // namespace npumoe
