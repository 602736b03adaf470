// SPDX-License-Identifier: Apache-2.0
// Writes graphs op by op with shape inference; keeps the first error, so that the caller checks once.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace npumoe {

// Types of an op's results from its operands, which are looked up in `function` and `constants`.
Result<std::vector<ValueType>> InferTypes(const Graph& graph, const Function& function, const Op& op);

// One thread at a time. After an error every call returns a dummy value and changes nothing; Finish reports it.
class GraphBuilder {
 public:
  GraphBuilder();

  // Begins a function; ops go to the latest one. The first is usually "main".
  void BeginFunction(std::string_view name);

  ValueId Input(std::string_view name, ValueType type);
  void Output(std::string_view name, ValueId value);  // renames the value

  // Constants. A weight added once may be used by several functions through the id that AddConstant returned.
  uint32_t AddConstant(ValueType type, std::vector<std::byte> data);
  ValueId UseConstant(uint32_t constant, std::string_view name);
  ValueId Scalar(float value, ElemType elem = ElemType::kF16);
  ValueId Int(int32_t value);
  ValueId Bool(bool value);
  ValueId String(std::string_view value);
  ValueId Ints(std::span<const int32_t> values);

  // Any op by name: the typed shorthands below call it. Parameters without a binding are left out.
  std::vector<ValueId> Add(OpKind kind, std::vector<std::pair<std::string_view, std::vector<ValueId>>> operands);

  // 1x1 convolution of [1, C, 1, S] with weight [O, C / groups, 1, 1], all of MIL's parameters written.
  ValueId Conv1x1(ValueId x, ValueId weight, int32_t groups = 1);
  ValueId Binary(OpKind kind, ValueId x, ValueId y);  // mul, add, sub, real_div, maximum, minimum, pow
  ValueId Unary(OpKind kind, ValueId x);              // silu, sigmoid, exp, ...
  ValueId MatMul(ValueId x, ValueId y, bool transpose_x, bool transpose_y);
  ValueId Softmax(ValueId x, int32_t axis);
  ValueId Reshape(ValueId x, std::span<const int32_t> shape);
  ValueId Transpose(ValueId x, std::span<const int32_t> perm);
  ValueId Concat(std::span<const ValueId> values, int32_t axis);
  std::vector<ValueId> Split(ValueId x, int32_t n_splits, int32_t axis);
  std::vector<ValueId> SplitSizes(ValueId x, std::span<const int32_t> sizes, int32_t axis);
  ValueId LayerNorm(ValueId x, std::span<const int32_t> axes, ValueId gamma, float epsilon);

  const ValueType& TypeOf(ValueId value) const;

  // The finished graph, or the first error. The builder is used up.
  Result<Graph> Finish() &&;

 private:
  ValueId AddValue(Value value);
  ValueId AddSmall(ValueType type, std::vector<std::byte> data, std::string_view hint);
  void Fail(Error error);
  bool Usable(ValueId value, std::string_view what);  // no error so far and the value exists; fails otherwise
  std::string FreeName(std::string_view hint, bool as_is);
  bool Claim(std::string_view name);  // for an input or output: whoever else bears the name gets another

  Graph graph_;
  std::vector<Error> errors_;  // at most one
  // Of the latest function.
  uint32_t n_names_ = 0;
  std::set<std::string, std::less<>> names_;
  std::map<uint32_t, ValueId> used_constants_;
};

}  // namespace npumoe
