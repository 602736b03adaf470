// SPDX-License-Identifier: Apache-2.0
// Reads the operands of one op by parameter name, for type inference and for the reference executor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "graph/graph.h"

namespace npumoe {

bool IsFloat(ElemType elem);  // fp16, fp32
bool IsInt(ElemType elem);    // any whole-number type, sub-byte ones included; not bool
bool IsByte(ElemType elem);   // int8, uint8

// "fp16", "int32", ... as `cast` and the like name them; sub-byte types and string are not among them.
Result<ElemType> ElemFromName(std::string_view name);

// Position of `axis` (negative: from the end) in a rank, or nothing when out of range.
bool ResolveAxis(int64_t axis, size_t rank, size_t& out);

// Elements of a whole-number or bool constant.
std::vector<int64_t> IntsOf(const Constant& constant);

// Borrows the graph; remembers which parameters were asked for, so that CheckAllRead finds unknown ones.
class OpReader {
 public:
  OpReader(const Graph& graph, const Function& function, const Op& op);

  const Op& op() const { return op_; }
  bool Has(std::string_view param);

  // Type of the parameter's one value. Fails when it is not bound, or bound to a list.
  Result<const ValueType*> Type(std::string_view param);
  // The same; of a float type.
  Result<const ValueType*> Float(std::string_view param);
  // The same; of fp16, fp32 or int32: what arithmetic works on.
  Result<const ValueType*> Number(std::string_view param);
  // The same; of exactly this type.
  Status Expect(std::string_view param, const ValueType& wanted);
  // At least one value: a list parameter.
  Result<std::vector<const ValueType*>> List(std::string_view param);

  // Values known before the graph runs: constants of whole-number, bool or string type.
  Result<int32_t> Int(std::string_view param);
  Result<bool> Bool(std::string_view param);
  Result<std::string> String(std::string_view param);
  Result<std::vector<int64_t>> Ints(std::string_view param);                 // a vector, not empty
  Result<std::vector<int64_t>> Ints(std::string_view param, size_t wanted);  // of that many
  Result<std::vector<bool>> Flags(std::string_view param, size_t wanted);    // bool vector; all false when not bound
  Result<bool> BoolOr(std::string_view param, bool absent);
  Result<size_t> Axis(std::string_view param, size_t rank);
  Result<std::vector<size_t>> Axes(std::string_view param, size_t rank);  // distinct, in the order given

  // Constant, or decoded from constants.
  Status CheckCompileTime(std::string_view param);
  bool IsConstant(std::string_view param);

  // An error about a parameter ("" = about the op as a whole).
  Error Fail(std::string_view param, std::string_view problem) const;
  // Fails when the op binds a parameter twice or one that nobody asked for.
  Status CheckAllRead() const;

 private:
  const Operand* Find(std::string_view param);
  Result<const Value*> One(std::string_view param);
  Result<const Constant*> OneConstant(std::string_view param);

  const Graph& graph_;
  const Function& function_;
  const Op& op_;
  std::vector<bool> read_;  // [operands]
};

}  // namespace npumoe
