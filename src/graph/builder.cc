// SPDX-License-Identifier: Apache-2.0
#include "graph/builder.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "graph/names.h"
#include "graph/validate.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

constexpr ValueId kDummy = 0;
constexpr size_t kMostResults = 2;  // of an op other than split: topk's values and indices

template <typename T>
std::vector<std::byte> BytesOf(std::span<const T> values) {
  std::vector<std::byte> bytes(values.size_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<std::byte> FloatBytes(ElemType elem, float value) {
  if (elem == ElemType::kF32) return BytesOf(std::span<const float>(&value, 1));
  const uint16_t half = F32ToF16(value);
  return BytesOf(std::span<const uint16_t>(&half, 1));
}

}  // namespace

GraphBuilder::GraphBuilder() = default;

void GraphBuilder::Fail(Error error) {
  if (errors_.empty()) errors_.push_back(std::move(error));
}

bool GraphBuilder::Usable(ValueId value, std::string_view what) {
  if (!errors_.empty()) return false;
  if (graph_.functions.empty()) {
    Fail(MakeError(Code::kInvalidArgument, "graph: {} before any function was begun", what));
    return false;
  }
  const Function& function = graph_.functions.back();
  if (value >= function.values.size()) {
    Fail(MakeError(Code::kInvalidArgument, "graph: function '{}': {}: value {} does not exist", function.name, what,
                   value));
    return false;
  }
  return true;
}

void GraphBuilder::BeginFunction(std::string_view name) {
  if (!errors_.empty()) return;
  graph_.functions.emplace_back();
  graph_.functions.back().name = name;
  n_names_ = 0;
  names_.clear();
  used_constants_.clear();
}

std::string GraphBuilder::FreeName(std::string_view hint, bool as_is) {
  const std::string base = LegalName(hint);
  std::string name = base;
  while (!as_is || names_.count(name) != 0) {
    name = fmt::format("{}_{}", base, n_names_++);
    as_is = true;
  }
  return name;
}

bool GraphBuilder::Claim(std::string_view name) {
  Function& function = graph_.functions.back();
  if (!IsLegalName(name)) {
    Fail(MakeError(Code::kInvalidArgument, "graph: function '{}': '{}' is not a legal name", function.name, name));
    return false;
  }
  if (names_.count(name) == 0) return true;
  for (const auto* listed : {&function.inputs, &function.outputs}) {
    for (const ValueId id : *listed) {
      if (function.values[id].name != name) continue;
      Fail(MakeError(Code::kInvalidArgument, "graph: function '{}': the name '{}' is taken", function.name, name));
      return false;
    }
  }
  for (Value& value : function.values) {
    if (value.name != name) continue;
    value.name = FreeName(name, false);
    names_.insert(value.name);
  }
  return true;
}

ValueId GraphBuilder::AddValue(Value value) {
  Function& function = graph_.functions.back();
  names_.insert(value.name);
  function.values.push_back(std::move(value));
  return static_cast<ValueId>(function.values.size() - 1);
}

ValueId GraphBuilder::Input(std::string_view name, ValueType type) {
  if (!errors_.empty()) return kDummy;
  if (graph_.functions.empty()) {
    Fail(MakeError(Code::kInvalidArgument, "graph: input '{}' before any function was begun", name));
    return kDummy;
  }
  if (!Claim(name)) return kDummy;
  const ValueId id = AddValue({std::string(name), std::move(type), kNoConstant});
  graph_.functions.back().inputs.push_back(id);
  return id;
}

void GraphBuilder::Output(std::string_view name, ValueId value) {
  if (!Usable(value, fmt::format("output '{}'", name))) return;
  Function& function = graph_.functions.back();
  const auto listed = [&](const std::vector<ValueId>& ids) {
    return std::find(ids.begin(), ids.end(), value) != ids.end();
  };
  if (function.values[value].is_constant() || listed(function.inputs) || listed(function.outputs)) {
    Fail(MakeError(Code::kInvalidArgument,
                   "graph: function '{}': output '{}': '{}' is a constant, an input or already an output, wanted the "
                   "result of an op",
                   function.name, name, function.values[value].name));
    return;
  }
  if (function.values[value].name != name) {
    if (!Claim(name)) return;
    names_.erase(function.values[value].name);
    function.values[value].name = name;
    names_.insert(std::string(name));
  }
  function.outputs.push_back(value);
}

uint32_t GraphBuilder::AddConstant(ValueType type, std::vector<std::byte> data) {
  if (!errors_.empty()) return 0;
  graph_.constants.push_back({std::move(type), std::move(data)});
  const auto index = static_cast<uint32_t>(graph_.constants.size() - 1);
  const Status status = CheckConstant(graph_.constants.back(), fmt::format("graph: constant {}", index));
  if (!status.ok()) Fail(status.error());
  return index;
}

ValueId GraphBuilder::UseConstant(uint32_t constant, std::string_view name) {
  if (!errors_.empty()) return kDummy;
  if (graph_.functions.empty() || constant >= graph_.constants.size()) {
    Fail(MakeError(Code::kInvalidArgument, "graph: constant {} ('{}') does not exist or no function was begun",
                   constant, name));
    return kDummy;
  }
  const auto known = used_constants_.find(constant);
  if (known != used_constants_.end()) return known->second;
  const ValueId id = AddValue({FreeName(name, true), graph_.constants[constant].type, constant});
  used_constants_.emplace(constant, id);
  return id;
}

ValueId GraphBuilder::AddSmall(ValueType type, std::vector<std::byte> data, std::string_view hint) {
  const uint32_t constant = AddConstant(std::move(type), std::move(data));
  if (!errors_.empty()) return kDummy;
  if (graph_.functions.empty()) return UseConstant(constant, hint);  // fails
  return AddValue({FreeName(hint, false), graph_.constants[constant].type, constant});
}

ValueId GraphBuilder::Scalar(float value, ElemType elem) {
  if (elem != ElemType::kF16 && elem != ElemType::kF32) {
    Fail(MakeError(Code::kInvalidArgument, "graph: scalar of {}, wanted fp16 or fp32", ToString(elem)));
    return kDummy;
  }
  return AddSmall({elem, {}}, FloatBytes(elem, value), "scalar");
}

ValueId GraphBuilder::Int(int32_t value) {
  return AddSmall({ElemType::kI32, {}}, BytesOf(std::span<const int32_t>(&value, 1)), "integer");
}

ValueId GraphBuilder::Bool(bool value) { return AddSmall({ElemType::kBool, {}}, {std::byte{value}}, "flag"); }

ValueId GraphBuilder::String(std::string_view value) {
  return AddSmall({ElemType::kString, {}}, BytesOf(std::span<const char>(value.data(), value.size())), "text");
}

ValueId GraphBuilder::Ints(std::span<const int32_t> values) {
  return AddSmall({ElemType::kI32, {values.size()}}, BytesOf(values), "integers");
}

std::vector<ValueId> GraphBuilder::Add(OpKind kind,
                                       std::vector<std::pair<std::string_view, std::vector<ValueId>>> operands) {
  const std::vector<ValueId> dummies(kMostResults, kDummy);
  Op op{kind, {}, {}};
  for (auto& [param, values] : operands) {
    for (const ValueId value : values) {
      if (!Usable(value, fmt::format("{}, parameter '{}'", MilName(kind), param))) return dummies;
    }
    op.operands.push_back({std::string(param), std::move(values)});
  }
  if (!errors_.empty()) return dummies;
  if (graph_.functions.empty()) {
    Fail(MakeError(Code::kInvalidArgument, "graph: {} before any function was begun", MilName(kind)));
    return dummies;
  }
  auto types = InferTypes(graph_, graph_.functions.back(), op);
  if (!types.ok()) {
    Fail(types.error());
    return dummies;
  }
  for (ValueType& type : *types)
    op.outputs.push_back(AddValue({FreeName(MilName(kind), false), type, kNoConstant, IsConstexpr(kind)}));
  graph_.functions.back().ops.push_back(op);
  return op.outputs;
}

ValueId GraphBuilder::Conv1x1(ValueId x, ValueId weight, int32_t groups) {
  constexpr std::array<int32_t, 2> kOnes{1, 1};
  constexpr std::array<int32_t, 4> kNoPad{};
  return Add(OpKind::kConv, {{"x", {x}},
                             {"weight", {weight}},
                             {"strides", {Ints(kOnes)}},
                             {"pad_type", {String("valid")}},
                             {"pad", {Ints(kNoPad)}},
                             {"dilations", {Ints(kOnes)}},
                             {"groups", {Int(groups)}}})[0];
}

ValueId GraphBuilder::Binary(OpKind kind, ValueId x, ValueId y) { return Add(kind, {{"x", {x}}, {"y", {y}}})[0]; }
ValueId GraphBuilder::Unary(OpKind kind, ValueId x) { return Add(kind, {{"x", {x}}})[0]; }

ValueId GraphBuilder::MatMul(ValueId x, ValueId y, bool transpose_x, bool transpose_y) {
  return Add(OpKind::kMatMul,
             {{"x", {x}}, {"y", {y}}, {"transpose_x", {Bool(transpose_x)}}, {"transpose_y", {Bool(transpose_y)}}})[0];
}

ValueId GraphBuilder::Softmax(ValueId x, int32_t axis) {
  return Add(OpKind::kSoftmax, {{"x", {x}}, {"axis", {Int(axis)}}})[0];
}

ValueId GraphBuilder::Reshape(ValueId x, std::span<const int32_t> shape) {
  return Add(OpKind::kReshape, {{"x", {x}}, {"shape", {Ints(shape)}}})[0];
}

ValueId GraphBuilder::Transpose(ValueId x, std::span<const int32_t> perm) {
  return Add(OpKind::kTranspose, {{"x", {x}}, {"perm", {Ints(perm)}}})[0];
}

ValueId GraphBuilder::Concat(std::span<const ValueId> values, int32_t axis) {
  return Add(OpKind::kConcat,
             {{"values", {values.begin(), values.end()}}, {"axis", {Int(axis)}}, {"interleave", {Bool(false)}}})[0];
}

std::vector<ValueId> GraphBuilder::Split(ValueId x, int32_t n_splits, int32_t axis) {
  auto parts = Add(OpKind::kSplit, {{"x", {x}}, {"num_splits", {Int(n_splits)}}, {"axis", {Int(axis)}}});
  parts.resize(static_cast<size_t>(std::max(n_splits, 1)), kDummy);
  return parts;
}

std::vector<ValueId> GraphBuilder::SplitSizes(ValueId x, std::span<const int32_t> sizes, int32_t axis) {
  auto parts = Add(OpKind::kSplit, {{"x", {x}}, {"split_sizes", {Ints(sizes)}}, {"axis", {Int(axis)}}});
  parts.resize(std::max<size_t>(sizes.size(), 1), kDummy);
  return parts;
}

ValueId GraphBuilder::LayerNorm(ValueId x, std::span<const int32_t> axes, ValueId gamma, float epsilon) {
  const ElemType elem = TypeOf(x).elem;
  return Add(OpKind::kLayerNorm,
             {{"x", {x}}, {"axes", {Ints(axes)}}, {"gamma", {gamma}}, {"epsilon", {Scalar(epsilon, elem)}}})[0];
}

const ValueType& GraphBuilder::TypeOf(ValueId value) const {
  static const ValueType kDummyType{ElemType::kF16, std::vector<size_t>(kMaxGraphRank, 1)};
  if (!errors_.empty() || graph_.functions.empty() || value >= graph_.functions.back().values.size()) {
    return kDummyType;
  }
  return graph_.functions.back().values[value].type;
}

Result<Graph> GraphBuilder::Finish() && {
  if (!errors_.empty()) return errors_[0];
  NM_TRY(ValidateGraph(graph_));
  return std::move(graph_);
}

}  // namespace npumoe
