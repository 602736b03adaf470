// SPDX-License-Identifier: Apache-2.0
#include "npu/fast_executor.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "graph/builder.h"
#include "graph/reference.h"
#include "npu/fast_plan.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

using Halves = std::vector<uint16_t>;

bool IsNan(uint16_t half) { return (half & 0x7fffu) > 0x7c00u; }

Halves RandomHalves(size_t n, uint64_t seed, float scale = 1.0f) {
  Random random(seed);
  Halves halves(n);
  for (uint16_t& half : halves) half = F32ToF16(scale * static_cast<float>(random.Gaussian()));
  return halves;
}

std::vector<std::byte> Bytes(const Halves& halves) {
  std::vector<std::byte> bytes(halves.size() * sizeof(uint16_t));
  std::memcpy(bytes.data(), halves.data(), bytes.size());
  return bytes;
}

Halves Rounded(const std::vector<float>& floats) {
  Halves halves(floats.size());
  for (size_t i = 0; i < floats.size(); ++i) halves[i] = F32ToF16(floats[i]);
  return halves;
}

struct Ran {
  std::vector<Halves> got, wanted;  // [outputs]
};

// Both on the same random inputs (or `given`).
Ran RunBoth(const Graph& graph, size_t n_threads = 2, std::vector<Halves> given = {}) {
  const Function& function = graph.functions[0];
  ThreadPool pool(n_threads);
  FastShared shared(pool);
  auto executor = FastExecutor::Make(graph, shared).value();
  std::vector<Array> arrays;
  std::vector<TensorRef> in;
  for (size_t i = 0; i < function.inputs.size(); ++i) {
    const ValueType& type = function.values[function.inputs[i]].type;
    if (given.size() <= i) given.push_back(RandomHalves(type.elems(), 100 + i));
    arrays.push_back({type, {}, {}});
    for (const uint16_t half : given[i]) arrays.back().floats.push_back(F16ToF32(half));
  }
  for (const Halves& halves : given) in.push_back({halves.data(), halves.size()});
  Ran ran;
  std::vector<MutableTensorRef> out;
  for (const ValueId id : function.outputs) ran.got.emplace_back(function.values[id].type.elems(), uint16_t{0xbeef});
  for (Halves& halves : ran.got) out.push_back({halves.data(), halves.size()});
  for (int run = 0; run < 2; ++run) EXPECT_TRUE(executor->Run(function, in, out).ok());
  const auto results = RunReference(graph, function, arrays, Rounding::kF16).value();
  for (const Array& array : results) ran.wanted.push_back(Rounded(array.floats));
  return ran;
}

void ExpectSameBits(const Graph& graph) {
  const Ran ran = RunBoth(graph);
  for (size_t i = 0; i < ran.got.size(); ++i) {
    for (size_t j = 0; j < ran.got[i].size(); ++j) {
      if (IsNan(ran.got[i][j]) && IsNan(ran.wanted[i][j])) continue;
      ASSERT_EQ(ran.got[i][j], ran.wanted[i][j]) << "output " << i << ", element " << j << "\n" << DumpGraph(graph);
    }
  }
  const Ran alone = RunBoth(graph, 1), three = RunBoth(graph, 3);
  ASSERT_EQ(alone.got, three.got);
}

// Steps of the first function that the reference runs.
size_t ReferenceSteps(const Graph& graph) {
  ThreadPool pool(1);
  FastShared shared(pool);
  const FastPlan plan = PlanFunction(graph, graph.functions[0], shared);
  size_t n = 0;
  for (const FastPlannedStep& step : plan.steps) n += step.fast ? 0 : 1;
  return n;
}

class Builder {
 public:
  Builder() { b_.BeginFunction("main"); }
  ValueId Input(std::vector<size_t> dims) { return b_.Input(fmt::format("x{}", n_++), {ElemType::kF16, dims}); }
  ValueId Constant(std::vector<size_t> dims, float scale = 1.0f) {
    const ValueType type{ElemType::kF16, std::move(dims)};
    return b_.UseConstant(b_.AddConstant(type, Bytes(RandomHalves(type.elems(), 7 + n_++, scale))), "c");
  }
  Graph Finish(std::vector<ValueId> outputs) {
    for (const ValueId id : outputs) b_.Output(fmt::format("y{}", n_++), id);
    return std::move(b_).Finish().value();
  }
  GraphBuilder* operator->() { return &b_; }

 private:
  GraphBuilder b_;
  size_t n_ = 0;
};

TEST(FastExecutor, BinaryOpsBroadcastLikeTheReference) {
  using D = std::vector<size_t>;
  const std::pair<D, D> shapes[] = {
      {{3, 5, 7}, {3, 5, 7}}, {{1, 4, 6, 9}, {1, 1, 6, 9}}, {{1, 33, 1, 40}, {1, 33, 1, 1}},
      {{2, 3}, {}},           {{1, 1, 1, 1}, {1, 1, 1, 1}}, {{2, 1, 5}, {1, 4, 1}},
      {{5}, {2, 3, 5}},       {{1, 2, 1, 3}, {4, 1, 5, 1}}, {{1, 700, 1, 50}, {1, 1, 1, 50}},
      {{40000}, {1}},
  };
  for (const OpKind kind :
       {OpKind::kAdd, OpKind::kSub, OpKind::kMul, OpKind::kRealDiv, OpKind::kMaximum, OpKind::kMinimum}) {
    for (const auto& [x, y] : shapes) {
      Builder b;
      const ValueId out = b->Binary(kind, b.Input(x), y.empty() ? b->Scalar(0.3f) : b.Input(y));
      const Graph graph = b.Finish({out});
      EXPECT_EQ(ReferenceSteps(graph), 0u);
      ExpectSameBits(graph);
    }
  }
}

TEST(FastExecutor, UnaryOpsAreTablesOfTheReference) {
  Halves every(65536);
  for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<uint16_t>(i);
  for (const OpKind kind : {OpKind::kSilu, OpKind::kSigmoid, OpKind::kRelu, OpKind::kTanh, OpKind::kExp, OpKind::kSin,
                            OpKind::kCos, OpKind::kSqrt, OpKind::kSquare}) {
    Builder b;
    const ValueId x = b.Input({65536});
    const Graph graph = b.Finish({b->Unary(kind, x)});
    EXPECT_EQ(ReferenceSteps(graph), 0u);
    const Ran ran = RunBoth(graph, 2, {every});
    for (size_t i = 0; i < every.size(); ++i) {
      ASSERT_TRUE(ran.got[0][i] == ran.wanted[0][i] || (IsNan(ran.got[0][i]) && IsNan(ran.wanted[0][i])))
          << MilName(kind) << " of " << i;
    }
  }
}

// Equal kinds with other parameters must not share a table.
TEST(FastExecutor, UnaryParametersAreHeeded) {
  Builder b;
  const ValueId x = b.Input({3, 50});
  std::vector<ValueId> out;
  for (const float high : {0.5f, 1.0f}) {
    out.push_back(b->Add(OpKind::kClip, {{"x", {x}}, {"alpha", {b->Scalar(-0.25f)}}, {"beta", {b->Scalar(high)}}})[0]);
  }
  for (const char* mode : {"EXACT", "SIGMOID_APPROXIMATION"}) {
    out.push_back(b->Add(OpKind::kGelu, {{"x", {x}}, {"mode", {b->String(mode)}}})[0]);
  }
  const ValueId squares = b->Unary(OpKind::kSquare, x);
  out.push_back(b->Add(OpKind::kRsqrt, {{"x", {squares}}, {"epsilon", {b->Scalar(0.5f)}}})[0]);
  const Graph graph = b.Finish(out);
  EXPECT_EQ(ReferenceSteps(graph), 0u);
  ExpectSameBits(graph);
  const Ran ran = RunBoth(graph);
  EXPECT_NE(ran.got[0], ran.got[1]);
  EXPECT_NE(ran.got[2], ran.got[3]);
}

TEST(FastExecutor, SoftmaxIsWithinOneUnitOfTheReference) {
  for (const std::vector<size_t>& dims : {std::vector<size_t>{1, 3, 5, 77}, {2, 1}, {4, 1000}, {1, 2, 600, 33}}) {
    Builder b;
    const ValueId x = b.Input(dims);
    const Graph graph = b.Finish({b->Softmax(x, -1)});
    EXPECT_EQ(ReferenceSteps(graph), 0u);
    const Ran ran = RunBoth(graph), alone = RunBoth(graph, 1);
    EXPECT_EQ(ran.got, alone.got);
    for (size_t i = 0; i < ran.got[0].size(); ++i) {
      // Off by 2^-20 of itself before its rounding, a value may land on the neighbour: patterns of positive halves are
      // in order.
      ASSERT_LE(std::abs(ran.got[0][i] - ran.wanted[0][i]), 1) << i;
    }
  }
}

TEST(FastExecutor, SoftmaxAlongAnotherAxisIsTheReferences) {
  Builder b;
  const ValueId x = b.Input({2, 7, 5});
  const Graph graph = b.Finish({b->Softmax(x, 1)});
  EXPECT_EQ(ReferenceSteps(graph), 1u);
  ExpectSameBits(graph);
}

TEST(FastExecutor, LayerNormHasTheReferencesBits) {
  struct Norm {
    std::vector<size_t> dims;
    std::vector<int32_t> axes;
    size_t n;
    size_t reference_steps;
  };
  const Norm norms[] = {{{1, 48, 1, 70}, {1}, 48, 0},
                        {{1, 3, 20, 33}, {2}, 20, 0},
                        {{4, 37}, {1}, 37, 0},
                        {{2, 3, 4, 5}, {1, 2}, 12, 0},
                        {{2, 3, 4}, {0, 2}, 8, 1}};
  for (const Norm& norm : norms) {
    Builder b;
    const ValueId x = b.Input(norm.dims);
    std::vector<size_t> gamma_dims;
    for (const int32_t axis : norm.axes) gamma_dims.push_back(norm.dims[static_cast<size_t>(axis)]);
    const Graph graph = b.Finish({b->LayerNorm(x, norm.axes, b.Constant(gamma_dims), 1e-5f)});
    EXPECT_EQ(ReferenceSteps(graph), norm.reference_steps);
    ExpectSameBits(graph);
  }
}

TEST(FastExecutor, TransposesMoveLikeTheReference) {
  const std::pair<std::vector<size_t>, std::vector<int32_t>> cases[] = {
      {{1, 4, 10, 33}, {0, 1, 3, 2}},
      {{1, 4, 10, 33}, {0, 2, 1, 3}},
      {{3, 5, 7}, {2, 1, 0}},
      {{3, 5, 7}, {1, 2, 0}},
      {{3, 5, 7}, {0, 1, 2}},
      {{1, 9, 1, 6}, {3, 0, 1, 2}},
      {{2, 3, 4, 5, 6}, {4, 0, 3, 1, 2}},
      {{1, 1}, {1, 0}},
  };
  for (const auto& [dims, perm] : cases) {
    Builder b;
    const ValueId x = b.Input(dims);
    const Graph graph = b.Finish({b->Transpose(x, perm)});
    EXPECT_EQ(ReferenceSteps(graph), 0u);
    ExpectSameBits(graph);
  }
}

TEST(FastExecutor, ConcatsAndSplitsMoveLikeTheReference) {
  for (const int32_t axis : {0, 1, 2, -1}) {
    Builder b;
    std::array<std::vector<size_t>, 3> dims;
    const size_t at = axis < 0 ? 2 : static_cast<size_t>(axis);
    std::vector<ValueId> parts;
    for (size_t i = 0; i < 3; ++i) {
      dims[i] = {2, 3, 5};
      dims[i][at] = i + 1;
      parts.push_back(b.Input(dims[i]));
    }
    const ValueId all = b->Concat(parts, axis);
    const auto split = b->SplitSizes(all, std::array{1, 4, 1}, axis);
    const Graph graph = b.Finish({all, split[0], split[1], split[2]});
    EXPECT_EQ(ReferenceSteps(graph), 0u);
    ExpectSameBits(graph);
  }
}

TEST(FastExecutor, SplitsAndReshapesAreNotCopied) {
  Builder b;
  const ValueId x = b.Input({1, 12, 1, 5});
  const ValueId doubled = b->Binary(OpKind::kAdd, x, x);
  const auto halves = b->Split(doubled, 2, 1);
  const ValueId flat = b->Reshape(halves[1], std::array{30});
  const ValueId again = b->Reshape(flat, std::array{5, 6});
  const Graph graph = b.Finish({b->Binary(OpKind::kMul, again, again), halves[0]});
  ThreadPool pool(1);
  FastShared shared(pool);
  const FastPlan plan = PlanFunction(graph, graph.functions[0], shared);
  EXPECT_EQ(plan.steps.size(), 2u);  // add, mul
  EXPECT_EQ(plan.copied_outputs, (std::vector<size_t>{1}));
  ExpectSameBits(graph);
}

TEST(FastExecutor, ProductsHaveTheReferencesBits) {
  for (const bool turn_x : {false, true}) {
    for (const bool turn_y : {false, true}) {
      Builder b;
      const size_t m = 37, k = 21, n = 50;
      using D = std::vector<size_t>;
      const ValueId x = b.Input(turn_x ? D{1, 3, k, m} : D{1, 3, m, k}),
                    y = b.Input(turn_y ? D{1, 3, n, k} : D{1, 3, k, n});
      const Graph graph = b.Finish({b->MatMul(x, y, turn_x, turn_y)});
      EXPECT_EQ(ReferenceSteps(graph), 0u);
      ExpectSameBits(graph);
    }
  }
  for (const int32_t groups : {1, 3}) {
    Builder b;
    const auto g = static_cast<size_t>(groups);
    const ValueId x = b.Input({1, g * 20, 1, 35});
    const Graph graph = b.Finish({b->Conv1x1(x, b.Constant({g * 13, 20, 1, 1}, 0.2f), groups)});
    EXPECT_EQ(ReferenceSteps(graph), 0u);
    ExpectSameBits(graph);
  }
  Builder b;
  const ValueId x = b.Input({2, 9, 20});
  const Graph graph = b.Finish({b->Add(OpKind::kLinear, {{"x", {x}}, {"weight", {b.Constant({31, 20})}}})[0]});
  ExpectSameBits(graph);
}

// int8 weights [26, 20] with a scale per output, used by a convolution and, when asked for, read as fp16 too.
Graph Int8Graph(bool read, int8_t zero) {
  Builder b;
  const ValueId x = b.Input({1, 20, 1, 35});
  std::vector<std::byte> data(26 * 20);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 37 % 255);
  const ValueId bytes = b->UseConstant(b->AddConstant({ElemType::kI8, {26, 20, 1, 1}}, data), "bytes");
  const ValueId point = b->UseConstant(b->AddConstant({ElemType::kI8, {}}, {static_cast<std::byte>(zero)}), "zero");
  const ValueId weight = b->Add(OpKind::kConstexprAffineDequantize, {{"quantized_data", {bytes}},
                                                                     {"zero_point", {point}},
                                                                     {"scale", {b.Constant({26}, 0.01f)}},
                                                                     {"axis", {b->Int(0)}}})[0];
  std::vector<ValueId> out{b->Conv1x1(x, weight)};
  if (read) out.push_back(b->Binary(OpKind::kAdd, weight, b.Input({26, 20, 1, 1})));
  return b.Finish(out);
}

TEST(FastExecutor, Int8WeightsAreUsedAsTheyAre) {
  ThreadPool pool(1);
  FastShared shared(pool);
  const Graph plain = Int8Graph(false, 0), read = Int8Graph(true, 0), shifted = Int8Graph(false, 3);
  EXPECT_EQ(FastExecutor::Make(plain, shared).value()->HostBytes(), 0u);
  EXPECT_EQ(FastExecutor::Make(read, shared).value()->HostBytes(), 26 * 20 * sizeof(uint16_t));
  EXPECT_EQ(FastExecutor::Make(shifted, shared).value()->HostBytes(), 26 * 20 * sizeof(uint16_t));
  for (const Graph* graph : {&plain, &read, &shifted}) {
    EXPECT_EQ(ReferenceSteps(*graph), 0u);
    ExpectSameBits(*graph);
  }
}

// Weights [out, in, 1, 1] as indices into `groups` palettes of 2^bits values.
ValueId PaletteWeight(Builder& b, size_t out, size_t in, size_t bits, size_t groups, bool packed) {
  const size_t n = out * in, entries = size_t{1} << bits;
  Random random(bits * 100 + groups);
  std::vector<std::byte> indices((n * bits + 7) / 8);
  for (size_t i = 0; i < n * bits; ++i) indices[i / 8] |= static_cast<std::byte>(random.Below(2) << (i % 8));
  const Halves table = RandomHalves(groups * entries, bits);
  if (packed) {
    const std::vector<uint32_t> shape{static_cast<uint32_t>(out), static_cast<uint32_t>(in), 1, 1};
    const auto bytes = std::as_bytes(std::span(shape));
    return b->Add(
        OpKind::kConstexprLutToDense,
        {{"indices", {b->UseConstant(b->AddConstant({ElemType::kU8, {indices.size()}}, indices), "indices")}},
         {"lut", {b->UseConstant(b->AddConstant({ElemType::kF16, {entries}}, Bytes(table)), "lut")}},
         {"shape", {b->UseConstant(b->AddConstant({ElemType::kU32, {4}}, {bytes.begin(), bytes.end()}), "shape")}}})[0];
  }
  const ElemType elem = bits == 8   ? ElemType::kU8
                        : bits == 6 ? ElemType::kU6
                        : bits == 4 ? ElemType::kU4
                                    : ElemType::kU3;
  return b->Add(
      OpKind::kConstexprLutToDense,
      {{"indices", {b->UseConstant(b->AddConstant({elem, {out, in, 1, 1}}, indices), "indices")}},
       {"lut",
        {b->UseConstant(b->AddConstant({ElemType::kF16, {groups, 1, 1, 1, entries, 1}}, Bytes(table)), "lut")}}})[0];
}

TEST(FastExecutor, PalettesAreDecodedLikeTheReference) {
  struct Case {
    size_t bits, groups;
    bool packed;
  };
  for (const Case& c :
       {Case{4, 1, false}, {4, 6, false}, {6, 2, false}, {8, 3, false}, {3, 2, false}, {6, 1, true}, {8, 1, true}}) {
    // 12 * 7 indices of 3 bits end within a byte.
    Builder b;
    const ValueId x = b.Input({1, 7, 1, 5});
    ExpectSameBits(b.Finish({b->Conv1x1(x, PaletteWeight(b, 12, 7, c.bits, c.groups, c.packed))}));
    // More indices than one task takes, groups across the border.
    Builder large;
    const ValueId y = large.Input({1, 300, 1, 2});
    ExpectSameBits(large.Finish({large->Conv1x1(y, PaletteWeight(large, 240, 300, c.bits, c.groups, c.packed))}));
  }
}

TEST(FastExecutor, FunctionsShareADecodedPalette) {
  Builder b;
  const ValueId x = b.Input({1, 7, 1, 5});
  const ValueId weight = PaletteWeight(b, 12, 7, 4, 3, false);
  const Graph graph = b.Finish({b->Conv1x1(x, weight), b->Conv1x1(b->Unary(OpKind::kSilu, x), weight)});
  ThreadPool pool(1);
  FastShared shared(pool);
  EXPECT_EQ(FastExecutor::Make(graph, shared).value()->HostBytes(), 12 * 7 * sizeof(uint16_t));
}

// Ops without a fast form, and values that are not fp16, stand between fast ones.
TEST(FastExecutor, TheReferenceFillsIn) {
  Builder b;
  const ValueId x = b.Input({4, 9}), y = b.Input({4, 9});
  const ValueId sum = b->Binary(OpKind::kAdd, x, y);
  const ValueId larger = b->Add(OpKind::kGreater, {{"x", {sum}}, {"y", {x}}})[0];  // bool
  const ValueId chosen = b->Add(OpKind::kSelect, {{"cond", {larger}}, {"a", {sum}}, {"b", {y}}})[0];
  const Graph graph =
      b.Finish({b->Binary(OpKind::kMul, chosen, b->Binary(OpKind::kPow, b->Unary(OpKind::kExp, x), y))});
  EXPECT_EQ(ReferenceSteps(graph), 3u);  // greater, select, pow
  ExpectSameBits(graph);
}

// A long chain needs little memory, values that live long are not overwritten, and no op works in place: a transpose
// could not.
TEST(FastExecutor, MemoryIsUsedAgainAfterAValuesLastUse) {
  Builder b;
  const ValueId x = b.Input({48, 48});
  std::vector<ValueId> values{x};
  Random random(5);
  for (int i = 0; i < 60; ++i) {
    const auto pick = [&] { return values[values.size() - 1 - random.Below(std::min<size_t>(values.size(), 4))]; };
    const ValueId left = pick(), right = pick();
    values.push_back(i % 3 == 0   ? b->Binary(OpKind::kMul, left, right)
                     : i % 3 == 1 ? b->Binary(OpKind::kSub, left, right)
                                  : b->Transpose(left, std::array{1, 0}));
  }
  const Graph graph = b.Finish({values[20], values.back()});
  ThreadPool pool(1);
  FastShared shared(pool);
  const FastPlan plan = PlanFunction(graph, graph.functions[0], shared);
  EXPECT_LE(plan.memory_halves, 6 * 48 * 48u);
  EXPECT_TRUE(plan.copied_outputs.empty());
  ExpectSameBits(graph);
}

// What is copied out at the end must still be there then.
TEST(FastExecutor, PartsThatAreOutputsOutliveLaterSteps) {
  Builder b;
  const ValueId x = b.Input({8, 4});
  const auto parts = b->Split(b->Binary(OpKind::kAdd, x, x), 2, 0);
  ValueId y = b->Unary(OpKind::kExp, x);
  for (int i = 0; i < 4; ++i) y = b->Binary(OpKind::kMul, y, x);
  const Graph graph = b.Finish({parts[0], y, parts[1]});
  ExpectSameBits(graph);
}

TEST(FastExecutor, OneValueAsTwoOutputsAndUnusedResults) {
  Builder b;
  const ValueId x = b.Input({6, 4});
  const ValueId sum = b->Binary(OpKind::kAdd, x, x);
  b->Binary(OpKind::kMul, sum, sum);  // nobody reads it
  const auto parts = b->Split(sum, 2, 1);
  const Graph graph = b.Finish({parts[1], b->Reshape(sum, std::array{24})});
  ExpectSameBits(graph);
}

}  // namespace
}  // namespace npumoe
