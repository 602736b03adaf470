// SPDX-License-Identifier: Apache-2.0
// ValidateGraph: every rule of a graph, in the order in which a reader of the text form would check them.
#include "graph/validate.h"

#include <set>
#include <string>

#include "graph/infer.h"
#include "graph/names.h"

namespace npumoe {
namespace {

// A lookup table has two axes more than the tensor it decodes to.
constexpr size_t kMaxConstantRank = kMaxGraphRank + 2;

Status CheckConstants(const Graph& graph) {
  for (size_t i = 0; i < graph.constants.size(); ++i) {
    NM_TRY(CheckConstant(graph.constants[i], fmt::format("graph: constant {}", i)));
  }
  return Ok{};
}

class FunctionChecker {
 public:
  FunctionChecker(const Graph& graph, const Function& function)
      : graph_(graph), function_(function), defined_(function.values.size(), false) {}

  Status Run() {
    if (!IsLegalName(function_.name)) return Fail(fmt::format("'{}' is not a legal name", function_.name));
    NM_TRY(CheckValues());
    NM_TRY(CheckInputs());
    for (size_t index = 0; index < function_.ops.size(); ++index) NM_TRY(CheckOp(function_.ops[index], index));
    for (size_t id = 0; id < defined_.size(); ++id) {
      if (!defined_[id]) return Fail(fmt::format("value '{}' is defined by nothing", function_.values[id].name));
    }
    return CheckOutputs();
  }

 private:
  Error Fail(std::string_view problem) const {
    return MakeError(Code::kInvalidArgument, "graph: function '{}': {}", function_.name, problem);
  }
  Error OpFail(const Op& op, size_t index, std::string_view problem) const {
    return Fail(fmt::format("op {} ({}): {}", index, MilName(op.kind), problem));
  }
  bool Exists(ValueId id) const { return id < function_.values.size(); }

  Status CheckValues() {
    std::set<std::string_view> names;
    for (size_t id = 0; id < function_.values.size(); ++id) {
      const Value& value = function_.values[id];
      if (!IsLegalName(value.name)) return Fail(fmt::format("value {}: '{}' is not a legal name", id, value.name));
      if (!names.insert(value.name).second) return Fail(fmt::format("two values are named '{}'", value.name));
      if (value.is_constant()) {
        if (value.decoded) return Fail(fmt::format("constant '{}' is marked as decoded", value.name));
        NM_TRY(CheckConstantValue(value));
        defined_[id] = true;
      } else {
        NM_TRY(CheckType(value.type, kMaxGraphRank,
                         fmt::format("graph: function '{}': value '{}'", function_.name, value.name)));
      }
    }
    return Ok{};
  }

  Status CheckConstantValue(const Value& value) const {
    if (value.constant >= graph_.constants.size()) {
      return Fail(fmt::format("value '{}': constant {} does not exist, the graph has {}", value.name, value.constant,
                              graph_.constants.size()));
    }
    const ValueType& type = graph_.constants[value.constant].type;
    if (value.type != type) {
      return Fail(fmt::format("value '{}': declared {}, its constant is {}", value.name, value.type.ToString(),
                              type.ToString()));
    }
    return Ok{};
  }

  Status CheckInputs() {
    for (const ValueId id : function_.inputs) {
      if (!Exists(id)) return Fail(fmt::format("input value {} does not exist", id));
      const Value& value = function_.values[id];
      if (value.is_constant()) return Fail(fmt::format("input '{}' is a constant", value.name));
      if (defined_[id]) return Fail(fmt::format("input '{}' is listed twice", value.name));
      if (value.decoded) return Fail(fmt::format("input '{}' is marked as decoded", value.name));
      if (value.type.elem == ElemType::kString || BitsOf(value.type.elem) < 8) {
        return Fail(fmt::format("input '{}' has type {}", value.name, value.type.ToString()));
      }
      defined_[id] = true;
    }
    return Ok{};
  }

  Status CheckOp(const Op& op, size_t index) {
    if (static_cast<size_t>(op.kind) >= kOpCount) return Fail(fmt::format("op {} is of no known kind", index));
    for (const Operand& operand : op.operands) {
      for (const ValueId id : operand.values) {
        if (!Exists(id)) {
          return OpFail(op, index, fmt::format("parameter '{}': value {} does not exist", operand.param, id));
        }
        if (!defined_[id]) {
          return OpFail(op, index,
                        fmt::format("parameter '{}': value '{}' is used before it is defined", operand.param,
                                    function_.values[id].name));
        }
      }
    }
    NM_TRY_VAR(const Types types, InferTypes(graph_, function_, op));
    if (op.outputs.size() != types.size()) {
      return OpFail(op, index, fmt::format("has {} results, wanted {}", op.outputs.size(), types.size()));
    }
    for (size_t i = 0; i < types.size(); ++i) NM_TRY(CheckResult(op, index, op.outputs[i], types[i]));
    return Ok{};
  }

  Status CheckResult(const Op& op, size_t index, ValueId id, const ValueType& inferred) {
    if (!Exists(id)) return OpFail(op, index, fmt::format("result value {} does not exist", id));
    const Value& value = function_.values[id];
    if (defined_[id]) return OpFail(op, index, fmt::format("defines '{}' a second time", value.name));
    if (value.decoded != IsConstexpr(op.kind)) {
      return OpFail(op, index, fmt::format("result '{}': its mark as decoded is wrong", value.name));
    }
    if (value.type != inferred) {
      return OpFail(
          op, index,
          fmt::format("result '{}': declared {}, inferred {}", value.name, value.type.ToString(), inferred.ToString()));
    }
    defined_[id] = true;
    return Ok{};
  }

  Status CheckOutputs() const {
    if (function_.outputs.empty()) return Fail("has no outputs");
    const std::set<ValueId> inputs(function_.inputs.begin(), function_.inputs.end());
    std::set<ValueId> seen;
    for (const ValueId id : function_.outputs) {
      if (!Exists(id)) return Fail(fmt::format("output value {} does not exist", id));
      const std::string& name = function_.values[id].name;
      if (function_.values[id].is_constant() || inputs.count(id) != 0) {
        return Fail(fmt::format("output '{}' is not the result of an op", name));
      }
      if (!seen.insert(id).second) return Fail(fmt::format("output '{}' is listed twice", name));
    }
    return Ok{};
  }

  const Graph& graph_;
  const Function& function_;
  std::vector<bool> defined_;  // [values]
};

}  // namespace

Status CheckConstant(const Constant& constant, std::string_view subject) {
  NM_TRY(CheckType(constant.type, kMaxConstantRank, subject));
  if (constant.type.elem == ElemType::kString) {
    if (constant.type.dims.empty()) return Ok{};
    return MakeError(Code::kInvalidArgument, "{}: {}, wanted a scalar string", subject, constant.type.ToString());
  }
  if (constant.data.size() != constant.type.bytes()) {
    return MakeError(Code::kInvalidArgument, "{}: {} bytes of data, {} needs {}", subject, constant.data.size(),
                     constant.type.ToString(), constant.type.bytes());
  }
  return Ok{};
}

Status ValidateFunction(const Graph& graph, const Function& function) { return FunctionChecker(graph, function).Run(); }

Status ValidateGraph(const Graph& graph) {
  NM_TRY(CheckConstants(graph));
  if (graph.functions.empty()) return MakeError(Code::kInvalidArgument, "graph: has no functions");
  std::set<std::string_view> names;
  for (const Function& function : graph.functions) {
    if (!names.insert(function.name).second) {
      return MakeError(Code::kInvalidArgument, "graph: two functions are named '{}'", function.name);
    }
    NM_TRY(ValidateFunction(graph, function));
  }
  return Ok{};
}

}  // namespace npumoe
