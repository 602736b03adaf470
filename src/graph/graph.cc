// SPDX-License-Identifier: Apache-2.0
#include "graph/graph.h"

#include <fmt/format.h>

#include <array>
#include <iterator>

#include "base/check.h"

namespace npumoe {
namespace {

struct ElemInfo {
  std::string_view name;
  size_t bits;
};

// In the order of ElemType.
constexpr std::array kElems{
    ElemInfo{"fp16", 16},  ElemInfo{"fp32", 32},   ElemInfo{"int8", 8},   ElemInfo{"uint8", 8},
    ElemInfo{"int16", 16}, ElemInfo{"uint16", 16}, ElemInfo{"int32", 32}, ElemInfo{"uint32", 32},
    ElemInfo{"bool", 8},   ElemInfo{"string", 8},  ElemInfo{"int4", 4},   ElemInfo{"uint1", 1},
    ElemInfo{"uint2", 2},  ElemInfo{"uint3", 3},   ElemInfo{"uint4", 4},  ElemInfo{"uint6", 6},
};

struct OpInfo {
  OpKind kind;
  std::string_view mil_name;
  int opset;
};

constexpr OpInfo kOps[] = {
#define NM_OP(kind, mil_name, opset) {OpKind::kind, mil_name, opset},
#include "graph/ops.def"
#undef NM_OP
};

}  // namespace

std::string_view ToString(ElemType elem) { return kElems[static_cast<size_t>(elem)].name; }
size_t BitsOf(ElemType elem) { return kElems[static_cast<size_t>(elem)].bits; }

size_t ValueType::elems() const {
  size_t n = 1;
  for (const size_t dim : dims) n *= dim;
  return n;
}

size_t ValueType::bytes() const { return (elems() * BitsOf(elem) + 7) / 8; }

std::string ValueType::ToString() const {
  return dims.empty() ? std::string(npumoe::ToString(elem))
                      : fmt::format("{}[{}]", npumoe::ToString(elem), fmt::join(dims, ", "));
}

std::string_view MilName(OpKind kind) {
  const auto index = static_cast<size_t>(kind);
  NM_CHECK(index < std::size(kOps));
  return kOps[index].mil_name;
}

int OpsetOf(OpKind kind) { return kOps[static_cast<size_t>(kind)].opset; }
bool IsConstexpr(OpKind kind) { return MilName(kind).starts_with("constexpr_"); }

Result<OpKind> OpKindFromMilName(std::string_view name) {
  for (const OpInfo& op : kOps) {
    if (op.mil_name == name) return op.kind;
  }
  return MakeError(Code::kUnsupported, "graph: op '{}' is not one of the {} known ops", name, std::size(kOps));
}

const Operand* Op::Find(std::string_view param) const {
  for (const Operand& operand : operands) {
    if (operand.param == param) return &operand;
  }
  return nullptr;
}

const Function* Graph::Find(std::string_view function) const {
  for (const Function& candidate : functions) {
    if (candidate.name == function) return &candidate;
  }
  return nullptr;
}

size_t Graph::WeightBytes() const {
  size_t bytes = 0;
  for (const Constant& constant : constants) bytes += constant.data.size();
  return bytes;
}

}  // namespace npumoe
