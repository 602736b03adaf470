// SPDX-License-Identifier: Apache-2.0
// Static graphs: fixed shapes, MIL's own op and parameter names, no dynamic index anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

// Element types of values. The sub-byte types occur only as constants that a constexpr op decodes.
enum class ElemType : uint8_t {
  kF16,
  kF32,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kU32,
  kBool,
  kString,
  kI4,
  kU1,
  kU2,
  kU3,
  kU4,
  kU6,
};
std::string_view ToString(ElemType elem);  // "fp16", "int32", ... as MIL prints them
size_t BitsOf(ElemType elem);              // 8 for kBool and kString

inline constexpr size_t kMaxGraphRank = 5;  // Core ML refuses more

// A scalar has no dims; a one-element vector has dims {1}.
struct ValueType {
  ElemType elem = ElemType::kF16;
  std::vector<size_t> dims;

  size_t elems() const;
  size_t bytes() const;          // dense; sub-byte elements packed over the whole tensor, least significant bit first
  std::string ToString() const;  // "fp16[1, 64, 1, 32]"
  bool operator==(const ValueType&) const = default;
};

// Dense row-major data of a constant; strings are their characters.
struct Constant {
  ValueType type;
  std::vector<std::byte> data;
};

enum class OpKind : uint8_t {
#define NM_OP(kind, mil_name, opset) kind,
#include "graph/ops.def"
#undef NM_OP
};
std::string_view MilName(OpKind kind);
Result<OpKind> OpKindFromMilName(std::string_view name);
int OpsetOf(OpKind kind);       // the first opset that has it: 5 = CoreML5 ... 8 = CoreML8
bool IsConstexpr(OpKind kind);  // decodes constants before the graph runs

using ValueId = uint32_t;
inline constexpr uint32_t kNoConstant = UINT32_MAX;

struct Value {
  std::string name;  // unique in its function, [A-Za-z_][A-Za-z0-9_]*
  ValueType type;
  uint32_t constant = kNoConstant;  // index into Graph::constants if the value is one
  bool decoded = false;             // result of a constexpr op: known before the graph runs

  bool is_constant() const { return constant != kNoConstant; }
};

// Values bound to one parameter of an op: one, except for lists (`values` of concat).
struct Operand {
  std::string param;
  std::vector<ValueId> values;
};

struct Op {
  OpKind kind;
  std::vector<Operand> operands;  // every parameter, also axes and flags, is a value
  std::vector<ValueId> outputs;

  const Operand* Find(std::string_view param) const;  // nullptr when not bound
};

struct Function {
  std::string name = "main";
  std::vector<Value> values;     // inputs, constants and op results
  std::vector<ValueId> inputs;   // in declared order; the value's name is the input's name
  std::vector<ValueId> outputs;  // the value's name is the output's name
  std::vector<Op> ops;           // topological order
};

// Several functions over one set of constants, as a multi-function package has them. Immutable once finished.
struct Graph {
  std::vector<Constant> constants;
  std::vector<Function> functions;  // at least one

  const Function* Find(std::string_view function) const;  // nullptr when absent
  size_t WeightBytes() const;                             // data of all constants
};

// Every rule a graph must keep: names, order, operand names and types, and declared types equal to inferred ones.
// Constants may differ in data only. Fails with kInvalidArgument naming function, op and parameter.
Status ValidateGraph(const Graph& graph);

// Stable text form of a valid graph, one op a line: for tests, diffs and people.
std::string DumpGraph(const Graph& graph);

// Content hash (names, types, ops, constants' bytes), the same on every machine: key of caches. 32 hex digits. Sees
// neither the numbering of values and constants nor constants' names nor what no op uses.
std::string HashGraph(const Graph& graph);

}  // namespace npumoe
