// SPDX-License-Identifier: Apache-2.0
// Ops with a fast form: what the reference defines, on fp16 values in memory, by SIMD kernels and many threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cache_lines.h"
#include "base/thread_pool.h"
#include "graph/reference.h"
#include "kernels/half_product.h"

namespace npumoe {

struct FastOp;

// What all programs of a device share: threads, scratch, and tables of functions of one value. One thread at a time.
class FastShared {
 public:
  explicit FastShared(ThreadPool& threads) : pool(threads), product(threads), rows(threads.n_threads()) {}

  ThreadPool& pool;
  HalfProduct product;
  std::vector<HalfProductJob> jobs;      // of one product
  std::vector<std::vector<float>> rows;  // [n_threads], a softmax row each

  // At least `halves` of memory at a cache line; what it held may be lost.
  uint16_t* Reserve(size_t halves);
  uint16_t* memory() { return memory_.get(); }

  // The value of a unary op for every fp16 bit pattern, as the reference gives it. Its other operands are constants.
  const uint16_t* Table(const FastOp& op);  // [65536]

  // Memory that outlives a run.
  size_t HostBytes() const;

 private:
  struct Free {
    void operator()(uint16_t* p) const { CacheLineAllocator<uint16_t>().deallocate(p, 0); }
  };
  std::unique_ptr<uint16_t[], Free> memory_;
  size_t memory_halves_ = 0;
  std::map<std::string, std::vector<uint16_t>> tables_;
};

// fp16 values of one run, by ValueId, and what the step asked for.
struct FastRun {
  FastShared& shared;
  std::span<uint16_t* const> values;
  uint16_t* scratch = nullptr;
};

struct FastStep {
  std::function<void(const FastRun&)> run;
  size_t scratch_halves = 0;
};

// A value that is `elems` consecutive values of another.
struct AliasOf {
  ValueId source = 0;
  size_t first = 0;
};

// Result number `output` as a part of another value, when it is one: reshapes, and splits along the outermost axis.
std::optional<AliasOf> FindAlias(const Graph& graph, const Function& function, const Op& op, size_t output);

// int8 weights with one scale per output channel, which a product can use as they are.
struct ScaledBytes {
  uint32_t bytes = kNoConstant, scales = kNoConstant;  // constants of the graph
};
std::optional<ScaledBytes> FindScaledBytes(const Graph& graph, const Function& function, ValueId value);

// An op that is to be run, and what its parameters say. Borrows everything.
struct FastOp {
  const Graph& graph;
  const Function& function;
  const Op& op;

  const Value& ValueOf(std::string_view param) const { return function.values[Id(param)]; }
  ValueId Id(std::string_view param) const { return op.Find(param)->values[0]; }
  const ValueType& Type(std::string_view param) const { return ValueOf(param).type; }
  const ValueType& OutType() const { return function.values[op.outputs[0]].type; }
  bool Has(std::string_view param) const { return op.Find(param) != nullptr; }
  bool IsHalf(std::string_view param) const { return Type(param).elem == ElemType::kF16; }
  // The parameter as an array, when it is a constant.
  std::optional<Array> ConstantOf(std::string_view param) const;
};

// How to run `op`; nothing when it has no fast form. Borrows the graph.
std::optional<FastStep> MakeFastStep(const FastOp& op, FastShared& shared);

// By family. Each says nothing when the op's form is not one it knows.
std::optional<FastStep> MakeProduct(const FastOp& op);  // conv, linear, matmul
std::optional<FastStep> MakeTranspose(const FastOp& op);
std::optional<FastStep> MakeConcat(const FastOp& op);
std::optional<FastStep> MakeSplit(const FastOp& op);

}  // namespace npumoe
