// SPDX-License-Identifier: Apache-2.0
// For tests: graphs of one op, with hand-written operands, run in both modes.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "graph/builder.h"
#include "graph/reference.h"
#include "tensor/float16.h"

namespace npumoe {

using Operands = std::vector<std::pair<std::string_view, std::vector<ValueId>>>;

template <typename T>
std::vector<std::byte> RawBytes(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline std::vector<std::byte> HalfBytes(const std::vector<float>& values) {
  std::vector<uint16_t> halves;
  for (const float v : values) halves.push_back(F32ToF16(v));
  return RawBytes(halves);
}

inline Array HalfArray(std::vector<size_t> dims, std::vector<float> floats) {
  Array array;
  array.type.dims = std::move(dims);
  array.floats = std::move(floats);
  return array;
}

// One function, "main". Inputs and constants first, then Run.
class OneOp {
 public:
  OneOp() { b.BeginFunction("main"); }

  ValueId F16(std::vector<size_t> dims, std::vector<float> values) {
    return Floats(ElemType::kF16, std::move(dims), std::move(values));
  }
  ValueId F32(std::vector<size_t> dims, std::vector<float> values) {
    return Floats(ElemType::kF32, std::move(dims), std::move(values));
  }
  ValueId I32(std::vector<size_t> dims, std::vector<int64_t> values) {
    return Ints(ElemType::kI32, std::move(dims), std::move(values));
  }
  ValueId Bools(std::vector<size_t> dims, std::vector<int64_t> values) {
    return Ints(ElemType::kBool, std::move(dims), std::move(values));
  }
  ValueId Ints(ElemType elem, std::vector<size_t> dims, std::vector<int64_t> values) {
    inputs.push_back({{elem, dims}, {}, std::move(values)});
    return b.Input("in_" + std::to_string(inputs.size()), inputs.back().type);
  }
  ValueId Const16(std::vector<size_t> dims, const std::vector<float>& values) {
    return Const({ElemType::kF16, std::move(dims)}, HalfBytes(values));
  }
  ValueId Const(ValueType type, std::vector<std::byte> data) {
    return b.UseConstant(b.AddConstant(std::move(type), std::move(data)), "c");
  }
  ValueId Vec(std::initializer_list<int32_t> values) { return b.Ints(std::vector<int32_t>(values)); }
  ValueId Flags(std::initializer_list<bool> values) {
    std::vector<std::byte> data;
    for (const bool v : values) data.push_back(std::byte{v});
    return Const({ElemType::kBool, {values.size()}}, data);
  }

  // Results in both modes; a failed test and nothing when the graph or the run fails.
  struct Results {
    std::vector<Array> f32, f16;
  };
  Results Run(OpKind kind, const Operands& operands) {
    const Result<Graph> graph = Build(kind, operands);
    if (!graph.ok()) {
      ADD_FAILURE() << graph.error().message;
      return {};
    }
    Results results;
    for (const bool half : {false, true}) {
      auto run = RunReference(*graph, graph->functions[0], inputs, half ? Rounding::kF16 : Rounding::kF32);
      if (!run.ok()) ADD_FAILURE() << run.error().message;
      if (run.ok()) (half ? results.f16 : results.f32) = std::move(run).value();
    }
    return results;
  }

  // The message of the error while building, or else while running.
  std::string Error(OpKind kind, const Operands& operands) {
    const Result<Graph> graph = Build(kind, operands);
    if (!graph.ok()) return graph.error().message;
    const auto run = RunReference(*graph, graph->functions[0], inputs, Rounding::kF32);
    return run.ok() ? "no error" : run.error().message;
  }

  GraphBuilder b;
  std::vector<Array> inputs;

 private:
  ValueId Floats(ElemType elem, std::vector<size_t> dims, std::vector<float> values) {
    inputs.push_back({{elem, std::move(dims)}, std::move(values), {}});
    return b.Input("in_" + std::to_string(inputs.size()), inputs.back().type);
  }
  Result<Graph> Build(OpKind kind, const Operands& operands) {
    size_t n = 0;
    for (const ValueId id : b.Add(kind, operands)) b.Output("out_" + std::to_string(n++), id);
    return std::move(b).Finish();
  }
};

// The first result has this type and these values in both modes (or others under fp16 rounding).
inline void ExpectFloats(const OneOp::Results& results, const std::vector<size_t>& dims,
                         const std::vector<float>& wanted, const std::vector<float>& wanted_f16) {
  ASSERT_FALSE(results.f32.empty() || results.f16.empty());
  EXPECT_EQ(results.f32[0].type.dims, dims);
  EXPECT_EQ(results.f32[0].floats, wanted);
  EXPECT_EQ(results.f16[0].floats, wanted_f16);
}
inline void ExpectFloats(const OneOp::Results& results, const std::vector<size_t>& dims,
                         const std::vector<float>& wanted) {
  ExpectFloats(results, dims, wanted, wanted);
}
inline void ExpectInts(const OneOp::Results& results, const std::vector<size_t>& dims,
                       const std::vector<int64_t>& wanted, size_t result = 0) {
  ASSERT_GT(results.f32.size(), result);
  ASSERT_GT(results.f16.size(), result);
  EXPECT_EQ(results.f32[result].type.dims, dims);
  EXPECT_EQ(results.f32[result].ints, wanted);
  EXPECT_EQ(results.f16[result].ints, wanted);
}

}  // namespace npumoe
