// SPDX-License-Identifier: Apache-2.0
#include "graph/mlpackage/opset.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "graph/mlpackage/defaults.h"
#include "graph/mlpackage/mil_types.h"
#include "graph/op_reader.h"

namespace npumoe {
namespace {

bool IsNarrowInt(ElemType elem) { return IsInt(elem) && BitsOf(elem) <= 16; }

class OpRater {
 public:
  OpRater(const Graph& graph, const Function& function, const Op& op) : graph_(graph), function_(function), op_(op) {}

  int Rate() {
    Need(OpsetOf(op_.kind));
    for (const Operand& operand : op_.operands) Need(OpsetOfParam(op_.kind, operand.param));
    if (IsConstexpr(op_.kind)) {
      RateConstexpr();
    } else {
      RateTypes();
      RateKind();
    }
    return opset_;
  }

 private:
  void Need(int opset) { opset_ = std::max(opset_, opset); }
  const Value& At(ValueId id) const { return function_.values[id]; }
  const Value* First(std::string_view param) const {
    const Operand* operand = op_.Find(param);
    return operand == nullptr ? nullptr : &At(operand->values[0]);
  }
  std::string_view Text(std::string_view param) const {
    const Value* value = First(param);
    if (value == nullptr || !value->is_constant()) return {};
    const auto& data = graph_.constants[value->constant].data;
    return {reinterpret_cast<const char*>(data.data()), data.size()};
  }

  void RateConstexpr() {
    const bool two_forms = op_.kind == OpKind::kConstexprLutToDense || op_.kind == OpKind::kConstexprSparseToDense;
    if (two_forms && !IsPackedForm(op_)) Need(8);
    for (const Operand& operand : op_.operands) {
      for (const ValueId id : operand.values) {
        if (At(id).decoded) Need(8);  // attributes cannot name another op
      }
    }
  }

  // 8- and 16-bit whole numbers outside of stored weights came with CoreML7.
  void RateTypes() {
    const auto rate = [&](ValueId id) {
      if (IsNarrowInt(At(id).type.elem)) Need(7);
    };
    for (const Operand& operand : op_.operands) std::for_each(operand.values.begin(), operand.values.end(), rate);
    std::for_each(op_.outputs.begin(), op_.outputs.end(), rate);
  }

  // Operands of two float types in one op came with CoreML7.
  void RateMixed(std::string_view x, std::initializer_list<std::string_view> others) {
    for (const std::string_view other : others) {
      if (First(other) != nullptr && First(other)->type.elem != First(x)->type.elem) Need(7);
    }
  }

  void RateKind() {
    switch (op_.kind) {
      case OpKind::kConv:
        if (Text("pad_type") == "same_lower") Need(6);
        RateMixed("x", {"weight", "bias"});
        break;
      case OpKind::kLinear:
        RateMixed("x", {"weight", "bias"});
        break;
      case OpKind::kMatMul:
        RateMixed("x", {"y"});
        break;
      case OpKind::kLayerNorm:
        RateMixed("x", {"gamma", "beta", "epsilon"});
        break;
      case OpKind::kRsqrt:
        RateMixed("x", {"epsilon"});
        break;
      case OpKind::kSliceByIndex:
        if (First("x")->type.elem == ElemType::kF16) Need(6);
        break;
      default:
        break;
    }
  }

  const Graph& graph_;
  const Function& function_;
  const Op& op_;
  int opset_ = kMinOpset;
};

Result<int> RateInterface(const Function& function, ValueId id) {
  const Value& value = function.values[id];
  const FeatureElem feature = FeatureElemOf(value.type.elem);
  if (feature.code == 0 || value.type.dims.empty()) {
    return MakeError(Code::kUnsupported,
                     "graph: function '{}': '{}' is {}; Core ML's inputs and outputs are tensors of fp16, fp32, int32 "
                     "or int8",
                     function.name, value.name, value.type.ToString());
  }
  if (value.decoded) {
    return MakeError(Code::kUnsupported,
                     "graph: function '{}': output '{}' is a decoded weight, wanted the result of "
                     "another op",
                     function.name, value.name);
  }
  return feature.specification_version - 1;
}

}  // namespace

bool NeedsFunctions(const Graph& graph) { return graph.functions.size() != 1 || graph.functions[0].name != "main"; }

bool IsPackedForm(const Op& op) {
  const bool two_forms = op.kind == OpKind::kConstexprLutToDense || op.kind == OpKind::kConstexprSparseToDense;
  return two_forms && op.Find("shape") != nullptr;
}

bool HasAttributeForm(OpKind kind, int opset) {
  return OpsetOf(kind) < 8 && (opset < 8 || kind == OpKind::kConstexprAffineDequantize);
}

Result<int> LowestOpset(const Graph& graph) {
  int opset = NeedsFunctions(graph) ? 8 : kMinOpset;
  for (const Function& function : graph.functions) {
    if (function.inputs.empty()) opset = std::max(opset, 8);
    for (const auto* listed : {&function.inputs, &function.outputs}) {
      for (const ValueId id : *listed) {
        NM_TRY_VAR(const int needed, RateInterface(function, id));
        opset = std::max(opset, needed);
      }
    }
    for (const Op& op : function.ops) opset = std::max(opset, OpRater(graph, function, op).Rate());
  }
  return opset;
}

}  // namespace npumoe
