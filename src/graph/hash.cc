// SPDX-License-Identifier: Apache-2.0
#include "graph/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "graph/graph.h"

namespace npumoe {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read in place and must not depend on the machine");

// SplitMix64's finisher: every input bit reaches every output bit.
uint64_t Finish(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

void AddType(ContentHash& hash, const ValueType& type) {
  hash.Add(ToString(type.elem));
  hash.Add(type.dims.size());
  for (const size_t dim : type.dims) hash.Add(dim);
}

void AddIds(ContentHash& hash, std::span<const ValueId> ids) {
  hash.Add(ids.size());
  for (const ValueId id : ids) hash.Add(id);
}

void AddFunction(ContentHash& hash, const Function& function) {
  hash.Add(function.name);
  hash.Add(function.values.size());
  for (const Value& value : function.values) {
    hash.Add(value.name);
    AddType(hash, value.type);
    hash.Add(value.constant);
  }
  AddIds(hash, function.inputs);
  AddIds(hash, function.outputs);
  hash.Add(function.ops.size());
  for (const Op& op : function.ops) {
    hash.Add(MilName(op.kind));
    hash.Add(op.operands.size());
    for (const Operand& operand : op.operands) {
      hash.Add(operand.param);
      AddIds(hash, operand.values);
    }
    AddIds(hash, op.outputs);
  }
}

}  // namespace

// Both steps are one-to-one in the state for a given word, so no entropy is lost along gigabytes.
void ContentHash::Add(uint64_t word) {
  a_ = std::rotl((a_ ^ word) * 0xbf58476d1ce4e5b9ULL, 31);
  b_ = std::rotl((b_ + word) * 0x94d049bb133111ebULL, 29);
}

void ContentHash::Add(std::span<const std::byte> bytes) {
  Add(static_cast<uint64_t>(bytes.size()));
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
    Add(word);
  }
}

std::string ContentHash::Hex() const { return fmt::format("{:016x}{:016x}", Finish(a_ ^ b_), Finish(a_ + 3 * b_)); }

std::string HashGraph(const Graph& graph) {
  ContentHash hash;
  hash.Add(graph.constants.size());
  for (const Constant& constant : graph.constants) {
    AddType(hash, constant.type);
    hash.Add(constant.data);
  }
  hash.Add(graph.functions.size());
  for (const Function& function : graph.functions) AddFunction(hash, function);
  return hash.Hex();
}

}  // namespace npumoe
