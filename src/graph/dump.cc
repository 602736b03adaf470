// SPDX-License-Identifier: Apache-2.0
// DumpGraph: small constants stand where they are used, big ones on lines of their own with a hash of their data.
#include <fmt/format.h>

#include <vector>

#include "graph/graph.h"
#include "graph/hash.h"
#include "graph/op_reader.h"
#include "graph/reference.h"

namespace npumoe {
namespace {

constexpr size_t kInlineElems = 16;

bool IsInline(const Constant& constant) {
  if (constant.type.elem == ElemType::kString) return true;
  return IsFloat(constant.type.elem) ? constant.type.dims.empty() : constant.type.elems() <= kInlineElems;
}

std::string InlineText(const Constant& constant) {
  if (constant.type.elem == ElemType::kString) {
    return fmt::format("\"{}\"",
                       std::string_view(reinterpret_cast<const char*>(constant.data.data()), constant.data.size()));
  }
  const Array array = ArrayOf(constant);
  if (IsFloat(constant.type.elem)) return fmt::format("{} {}", ToString(constant.type.elem), array.floats[0]);
  std::vector<std::string> elems;
  for (const int64_t v : array.ints) {
    elems.push_back(constant.type.elem == ElemType::kBool ? (v != 0 ? "true" : "false") : fmt::format("{}", v));
  }
  const bool plain = constant.type.elem == ElemType::kI32 || constant.type.elem == ElemType::kBool;
  const std::string prefix = plain ? "" : fmt::format("{} ", ToString(constant.type.elem));
  if (constant.type.dims.empty()) return prefix + elems[0];
  return fmt::format("{}[{}]", plain && constant.type.dims.size() == 1 ? "" : constant.type.ToString() + " ",
                     fmt::join(elems, ", "));
}

std::string ValueText(const Graph& graph, const Function& function, ValueId id) {
  const Value& value = function.values[id];
  if (!value.is_constant()) return value.name;
  const Constant& constant = graph.constants[value.constant];
  return IsInline(constant) ? InlineText(constant) : value.name;
}

std::string OpLine(const Graph& graph, const Function& function, const Op& op) {
  std::vector<std::string> results, operands;
  for (const ValueId id : op.outputs) {
    results.push_back(fmt::format("{} {}", function.values[id].name, function.values[id].type.ToString()));
  }
  for (const Operand& operand : op.operands) {
    std::vector<std::string> values;
    for (const ValueId id : operand.values) values.push_back(ValueText(graph, function, id));
    operands.push_back(values.size() == 1 ? fmt::format("{}={}", operand.param, values[0])
                                          : fmt::format("{}=({})", operand.param, fmt::join(values, ", ")));
  }
  return fmt::format("  {} = {}({})\n", fmt::join(results, ", "), MilName(op.kind), fmt::join(operands, ", "));
}

}  // namespace

std::string DumpGraph(const Graph& graph) {
  std::string text;
  for (const Function& function : graph.functions) {
    text += fmt::format("function {}\n", function.name);
    for (const ValueId id : function.inputs) {
      text += fmt::format("  input {} {}\n", function.values[id].name, function.values[id].type.ToString());
    }
    for (const Value& value : function.values) {
      if (!value.is_constant()) continue;
      const Constant& constant = graph.constants[value.constant];
      if (IsInline(constant)) continue;
      ContentHash hash;
      hash.Add(constant.data);
      text += fmt::format("  const {} {} #{} {}\n", value.name, value.type.ToString(), value.constant, hash.Hex());
    }
    for (const Op& op : function.ops) text += OpLine(graph, function, op);
    for (const ValueId id : function.outputs) text += fmt::format("  output {}\n", function.values[id].name);
  }
  return text;
}

}  // namespace npumoe
