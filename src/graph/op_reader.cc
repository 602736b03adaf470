// SPDX-License-Identifier: Apache-2.0
#include "graph/op_reader.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "graph/array.h"
#include "graph/names.h"

namespace npumoe {

bool IsFloat(ElemType elem) { return elem == ElemType::kF16 || elem == ElemType::kF32; }
bool IsByte(ElemType elem) { return elem == ElemType::kI8 || elem == ElemType::kU8; }
bool IsInt(ElemType elem) { return !IsFloat(elem) && elem != ElemType::kBool && elem != ElemType::kString; }

Result<ElemType> ElemFromName(std::string_view name) {
  for (const ElemType elem : {ElemType::kF16, ElemType::kF32, ElemType::kI8, ElemType::kU8, ElemType::kI16,
                              ElemType::kU16, ElemType::kI32, ElemType::kU32, ElemType::kBool}) {
    if (ToString(elem) == name) return elem;
  }
  return MakeError(Code::kInvalidArgument, "type '{}' is not known", name);
}

bool ResolveAxis(int64_t axis, size_t rank, size_t& out) {
  const auto n = static_cast<int64_t>(rank);
  if (axis < -n || axis >= n) return false;
  out = static_cast<size_t>(axis < 0 ? axis + n : axis);
  return true;
}

std::vector<int64_t> IntsOf(const Constant& constant) { return ArrayOf(constant).ints; }

OpReader::OpReader(const Graph& graph, const Function& function, const Op& op)
    : graph_(graph), function_(function), op_(op), read_(op.operands.size(), false) {}

const Operand* OpReader::Find(std::string_view param) {
  for (size_t i = 0; i < op_.operands.size(); ++i) {
    if (op_.operands[i].param != param) continue;
    read_[i] = true;
    return &op_.operands[i];
  }
  return nullptr;
}

bool OpReader::Has(std::string_view param) { return Find(param) != nullptr; }

Error OpReader::Fail(std::string_view param, std::string_view problem) const {
  // An op under construction is not in the function yet and will be the next one.
  const Op* first = function_.ops.data();
  const bool inside =
      std::less_equal<const Op*>()(first, &op_) && std::less<const Op*>()(&op_, first + function_.ops.size());
  const size_t index = inside ? static_cast<size_t>(&op_ - first) : function_.ops.size();
  std::string where = fmt::format("graph: function '{}', op {} ({})", function_.name, index, MilName(op_.kind));
  if (!param.empty()) where += fmt::format(", parameter '{}'", ShownName(param));
  // It may quote a text of the graph, which may come from a file.
  constexpr size_t kMostShown = 300;
  return MakeError(Code::kInvalidArgument, "{}: {}", where, ShownName(problem, kMostShown));
}

Status OpReader::CheckAllRead() const {
  for (size_t i = 0; i < op_.operands.size(); ++i) {
    const std::string& param = op_.operands[i].param;
    if (op_.Find(param) != &op_.operands[i]) return Fail(param, "is bound twice");
    if (!read_[i]) return Fail(param, "is not a parameter of this op, or not of this form of it");
  }
  return Ok{};
}

Result<const Value*> OpReader::One(std::string_view param) {
  const Operand* operand = Find(param);
  if (operand == nullptr) return Fail(param, "is missing");
  if (operand->values.size() != 1) {
    return Fail(param, fmt::format("has {} values, wanted 1", operand->values.size()));
  }
  if (operand->values[0] >= function_.values.size()) {
    return Fail(param, fmt::format("value {} does not exist, the function has {}", operand->values[0],
                                   function_.values.size()));
  }
  return &function_.values[operand->values[0]];
}

Result<const ValueType*> OpReader::Type(std::string_view param) {
  NM_TRY_VAR(const Value* value, One(param));
  return &value->type;
}

Result<const ValueType*> OpReader::Float(std::string_view param) {
  NM_TRY_VAR(const ValueType* type, Type(param));
  if (!IsFloat(type->elem)) return Fail(param, fmt::format("wanted fp16 or fp32, got {}", type->ToString()));
  return type;
}

Result<const ValueType*> OpReader::Number(std::string_view param) {
  NM_TRY_VAR(const ValueType* type, Type(param));
  if (!IsFloat(type->elem) && type->elem != ElemType::kI32) {
    return Fail(param, fmt::format("wanted fp16, fp32 or int32, got {}", type->ToString()));
  }
  return type;
}

Status OpReader::Expect(std::string_view param, const ValueType& wanted) {
  NM_TRY_VAR(const ValueType* type, Type(param));
  if (*type != wanted) return Fail(param, fmt::format("wanted {}, got {}", wanted.ToString(), type->ToString()));
  return Ok{};
}

Result<std::vector<const ValueType*>> OpReader::List(std::string_view param) {
  const Operand* operand = Find(param);
  if (operand == nullptr) return Fail(param, "is missing");
  if (operand->values.empty()) return Fail(param, "is an empty list");
  std::vector<const ValueType*> types;
  for (const ValueId id : operand->values) {
    if (id >= function_.values.size()) {
      return Fail(param, fmt::format("value {} does not exist, the function has {}", id, function_.values.size()));
    }
    types.push_back(&function_.values[id].type);
  }
  return types;
}

Result<const Constant*> OpReader::OneConstant(std::string_view param) {
  NM_TRY_VAR(const Value* value, One(param));
  if (!value->is_constant()) {
    return Fail(param, fmt::format("must be a constant, got the run-time value '{}'", value->name));
  }
  if (value->constant >= graph_.constants.size()) {
    return Fail(param,
                fmt::format("constant {} does not exist, the graph has {}", value->constant, graph_.constants.size()));
  }
  const Constant& constant = graph_.constants[value->constant];
  if (constant.type.elem != ElemType::kString && constant.data.size() != constant.type.bytes()) {
    return Fail(param, fmt::format("constant has {} bytes, its type {} needs {}", constant.data.size(),
                                   constant.type.ToString(), constant.type.bytes()));
  }
  return &constant;
}

Result<int32_t> OpReader::Int(std::string_view param) {
  NM_TRY_VAR(const Constant* constant, OneConstant(param));
  if (constant->type != ValueType{ElemType::kI32, {}}) {
    return Fail(param, fmt::format("wanted an int32 scalar, got {}", constant->type.ToString()));
  }
  return static_cast<int32_t>(IntsOf(*constant)[0]);
}

Result<bool> OpReader::Bool(std::string_view param) {
  NM_TRY_VAR(const Constant* constant, OneConstant(param));
  if (constant->type != ValueType{ElemType::kBool, {}}) {
    return Fail(param, fmt::format("wanted a bool scalar, got {}", constant->type.ToString()));
  }
  return IntsOf(*constant)[0] != 0;
}

Result<bool> OpReader::BoolOr(std::string_view param, bool absent) {
  if (!Has(param)) return absent;
  return Bool(param);
}

Result<std::string> OpReader::String(std::string_view param) {
  NM_TRY_VAR(const Constant* constant, OneConstant(param));
  if (constant->type != ValueType{ElemType::kString, {}}) {
    return Fail(param, fmt::format("wanted a string, got {}", constant->type.ToString()));
  }
  return std::string(reinterpret_cast<const char*>(constant->data.data()), constant->data.size());
}

Result<std::vector<int64_t>> OpReader::Ints(std::string_view param) {
  NM_TRY_VAR(const Constant* constant, OneConstant(param));
  if (!IsInt(constant->type.elem) || constant->type.dims.size() != 1 || constant->type.dims[0] == 0) {
    return Fail(param, fmt::format("wanted a vector of int32, got {}", constant->type.ToString()));
  }
  return IntsOf(*constant);
}

Result<std::vector<int64_t>> OpReader::Ints(std::string_view param, size_t wanted) {
  NM_TRY_VAR(auto values, Ints(param));
  if (values.size() != wanted) return Fail(param, fmt::format("has {} values, wanted {}", values.size(), wanted));
  return values;
}

Result<std::vector<bool>> OpReader::Flags(std::string_view param, size_t wanted) {
  if (!Has(param)) return std::vector<bool>(wanted, false);
  NM_TRY_VAR(const Constant* constant, OneConstant(param));
  if (constant->type != ValueType{ElemType::kBool, {wanted}}) {
    return Fail(param, fmt::format("wanted bool[{}], got {}", wanted, constant->type.ToString()));
  }
  const auto ints = IntsOf(*constant);
  std::vector<bool> flags(wanted);
  std::transform(ints.begin(), ints.end(), flags.begin(), [](int64_t v) { return v != 0; });
  return flags;
}

Result<size_t> OpReader::Axis(std::string_view param, size_t rank) {
  NM_TRY_VAR(const int32_t axis, Int(param));
  size_t resolved = 0;
  if (!ResolveAxis(axis, rank, resolved)) return Fail(param, fmt::format("axis {} of a value of rank {}", axis, rank));
  return resolved;
}

Result<std::vector<size_t>> OpReader::Axes(std::string_view param, size_t rank) {
  NM_TRY_VAR(const auto values, Ints(param));
  if (values.size() > rank) return Fail(param, fmt::format("names {} axes of a value of rank {}", values.size(), rank));
  std::vector<size_t> axes;
  for (const int64_t value : values) {
    size_t axis = 0;
    if (!ResolveAxis(value, rank, axis)) return Fail(param, fmt::format("axis {} of a value of rank {}", value, rank));
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) {
      return Fail(param, fmt::format("names axis {} twice", axis));
    }
    axes.push_back(axis);
  }
  return axes;
}

bool OpReader::IsConstant(std::string_view param) {
  const Result<const Value*> value = One(param);
  return value.ok() && (*value)->is_constant();
}

Status OpReader::CheckCompileTime(std::string_view param) {
  NM_TRY_VAR(const Value* value, One(param));
  if (value->is_constant() || value->decoded) return Ok{};
  return Fail(param, fmt::format("must be a constant or decoded from one, got the run-time value '{}'", value->name));
}

}  // namespace npumoe
