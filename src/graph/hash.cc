// SPDX-License-Identifier: Apache-2.0
#include "graph/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
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

// Values get their numbers where they first occur: inputs, then operands and results op by op.
class FunctionHasher {
 public:
  FunctionHasher(ContentHash& hash, const Graph& graph, const Function& function,
                 std::vector<std::string>& constant_hashes)
      : hash_(hash),
        graph_(graph),
        function_(function),
        constant_hashes_(constant_hashes),
        numbers_(function.values.size(), kUnseen) {}

  void Run() {
    hash_.Add(function_.name);
    AddValues(function_.inputs);
    hash_.Add(function_.ops.size());
    for (const Op& op : function_.ops) {
      hash_.Add(MilName(op.kind));
      hash_.Add(op.operands.size());
      for (const Operand& operand : op.operands) {
        hash_.Add(operand.param);
        AddValues(operand.values);
      }
      AddValues(op.outputs);
    }
    AddValues(function_.outputs);
  }

 private:
  static constexpr uint64_t kUnseen = UINT64_MAX;

  void AddValues(std::span<const ValueId> ids) {
    hash_.Add(ids.size());
    for (const ValueId id : ids) AddValue(id);
  }

  void AddValue(ValueId id) {
    NM_CHECK(id < numbers_.size());
    const Value& value = function_.values[id];
    // A constant is what it holds, wherever it stands.
    if (value.is_constant()) return hash_.Add(ConstantHash(value.constant));
    if (numbers_[id] != kUnseen) return hash_.Add(numbers_[id]);
    numbers_[id] = next_++;
    hash_.Add(value.name);
    AddType(hash_, value.type);
  }

  const std::string& ConstantHash(uint32_t index) {
    NM_CHECK(index < constant_hashes_.size());
    std::string& known = constant_hashes_[index];
    if (known.empty()) {
      ContentHash hash;
      AddType(hash, graph_.constants[index].type);
      hash.Add(graph_.constants[index].data);
      known = hash.Hex();
    }
    return known;
  }

  ContentHash& hash_;
  const Graph& graph_;
  const Function& function_;
  std::vector<std::string>& constant_hashes_;  // [constants], empty where not computed yet
  std::vector<uint64_t> numbers_;              // [values]
  uint64_t next_ = 0;
};

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
  std::vector<std::string> constant_hashes(graph.constants.size());
  hash.Add(graph.functions.size());
  for (const Function& function : graph.functions) FunctionHasher(hash, graph, function, constant_hashes).Run();
  return hash.Hex();
}

}  // namespace npumoe
