// SPDX-License-Identifier: Apache-2.0
#include "npu/simulated_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "graph/builder.h"
#include "graph/reference.h"
#include "npu/cost.h"
#include "npu/limits.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

std::vector<std::byte> RandomHalves(size_t n, float scale, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(n * sizeof(uint16_t));
  for (size_t i = 0; i < n; ++i) {
    const uint16_t half = F32ToF16(scale * static_cast<float>(random.Gaussian()));
    std::memcpy(bytes.data() + i * sizeof(half), &half, sizeof(half));
  }
  return bytes;
}

constexpr size_t kDim = 48, kHidden = 40, kGroups = 3;

// Three experts of a gated FFN as grouped convolutions, at two capacities over the same weights.
Graph ExpertGraph(std::vector<size_t> capacities = {32, 64}) {
  GraphBuilder b;
  const auto weight = [&](size_t out, size_t in, uint64_t seed) {
    return b.AddConstant({ElemType::kF16, {kGroups * out, in, 1, 1}}, RandomHalves(kGroups * out * in, 0.15f, seed));
  };
  const uint32_t gate = weight(kHidden, kDim, 1), up = weight(kHidden, kDim, 2), down = weight(kDim, kHidden, 3);
  for (const size_t c : capacities) {
    b.BeginFunction("rows_" + std::to_string(c));
    const ValueId x = b.Input("x", {ElemType::kF16, {1, kGroups * kDim, 1, c}});
    const ValueId g = b.Unary(OpKind::kSilu, b.Conv1x1(x, b.UseConstant(gate, "gate"), kGroups));
    const ValueId h = b.Binary(OpKind::kMul, g, b.Conv1x1(x, b.UseConstant(up, "up"), kGroups));
    b.Output("y", b.Conv1x1(h, b.UseConstant(down, "down"), kGroups));
  }
  return std::move(b).Finish().value();
}

std::vector<uint16_t> HalvesOf(const std::vector<std::byte>& bytes) {
  std::vector<uint16_t> halves(bytes.size() / sizeof(uint16_t));
  std::memcpy(halves.data(), bytes.data(), bytes.size());
  return halves;
}

const NpuSpec& M2Max() { return **FindSpec("m2-max"); }

TEST(SimulatedDevice, ComputesWhatTheReferenceDefines) {
  const auto device = MakeSimulatedDevice(M2Max(), 2);
  const Graph graph = ExpertGraph();
  auto program = device->Compile(ExpertGraph(), "experts").value();
  for (const size_t c : {32u, 64u}) {
    const Function& function = *graph.Find("rows_" + std::to_string(c));
    const std::vector<uint16_t> x = HalvesOf(RandomHalves(kGroups * kDim * c, 1.0f, 9));
    std::vector<uint16_t> y(x.size());
    const TensorRef in[] = {{x.data(), x.size()}};
    const MutableTensorRef out[] = {{y.data(), y.size()}};
    ASSERT_TRUE(program->Run(function.name, in, out, 0).ok());
    Array input{function.values[function.inputs[0]].type, {}, {}};
    for (const uint16_t half : x) input.floats.push_back(F16ToF32(half));
    const auto wanted = RunReference(graph, function, {input}, Rounding::kF16).value();
    for (size_t i = 0; i < y.size(); ++i) {
      // Sums differ in order only: a few units in the last place of values around 1.
      ASSERT_NEAR(F16ToF32(y[i]), wanted[0].floats[i], 4 * 0x1p-10 * (1 + std::fabs(wanted[0].floats[i]))) << i;
    }
  }
}

TEST(SimulatedDevice, KeepsOneProgramInFlightOnAVirtualClock) {
  const auto device = MakeSimulatedDevice(M2Max(), 1);
  auto program = device->Compile(ExpertGraph(), "experts").value();
  const std::vector<uint16_t> x(kGroups * kDim * 32);
  std::vector<uint16_t> y(x.size());
  const TensorRef in[] = {{x.data(), x.size()}};
  const MutableTensorRef out[] = {{y.data(), y.size()}};
  const Interval first = program->Run("rows_32", in, out, 1000).value();
  const Interval second = program->Run("rows_32", in, out, 0).value();
  EXPECT_TRUE(first.simulated);
  EXPECT_EQ(first.begin, 1000);
  EXPECT_EQ(second.begin, first.end);
  EXPECT_EQ(second.end - second.begin, first.end - first.begin);
  const Graph graph = ExpertGraph();
  const Cost cost = DispatchCost(CountWork(graph, graph.functions[0], M2Max()), M2Max());
  EXPECT_NEAR(static_cast<double>(first.end - first.begin), cost.seconds * 1e9, 1);
  EXPECT_GE(cost.seconds, M2Max().dispatch_seconds.value);
  EXPECT_DOUBLE_EQ(first.energy_joules, cost.joules);
  // Waking after a pause longer than the spec's costs once.
  const Nanos late = second.end + static_cast<Nanos>(2e9 * M2Max().idle_seconds.value);
  const Interval third = program->Run("rows_32", in, out, late).value();
  EXPECT_NEAR(static_cast<double>(third.end - third.begin), (cost.seconds + M2Max().wake_seconds.value) * 1e9, 2);
}

TEST(CountWork, CountsMultiplyAddsWeightsAndInterfaces) {
  const Graph graph = ExpertGraph({32});
  const Work work = CountWork(graph, graph.functions[0], M2Max());
  const double products = 3.0 * kGroups * kDim * kHidden;  // three projections
  // Per row: products, and silu and mul once per hidden value.
  EXPECT_DOUBLE_EQ(work.flops, 32 * (2 * products + 2.0 * kGroups * kHidden));
  EXPECT_GE(work.weight_bytes, 2 * products);         // fp16
  EXPECT_LE(work.weight_bytes, 2 * products + 1024);  // and the small parameters of the ops
  EXPECT_DOUBLE_EQ(work.io_bytes, 2.0 * 2 * kGroups * kDim * 32);
}

// The limit named in the message of a spec with one limit lowered.
std::string Refusal(void (*lower)(NpuSpec&)) {
  NpuSpec spec = M2Max();
  lower(spec);
  const auto device = MakeSimulatedDevice(spec, 1);
  const auto program = device->Compile(ExpertGraph(), "experts");
  return program.ok() ? "" : program.error().message;
}

TEST(SimulatedDevice, RefusesWhatBreaksALimitAndNamesIt) {
  EXPECT_EQ(Refusal([](NpuSpec&) {}), "");
  EXPECT_NE(Refusal([](NpuSpec& s) { s.max_channels = kGroups * kDim - 1; }).find("max_channels"), std::string::npos);
  EXPECT_EQ(Refusal([](NpuSpec& s) { s.max_channels = kGroups * kDim; }), "");
  EXPECT_NE(Refusal([](NpuSpec& s) { s.max_axis = 63; }).find("max_axis"), std::string::npos);
  EXPECT_NE(Refusal([](NpuSpec& s) { s.max_program_weight_bytes = 1000; }).find("max_program_weight_bytes"),
            std::string::npos);
  EXPECT_NE(Refusal([](NpuSpec& s) { s.max_programs = 0; }).find("max_programs"), std::string::npos);
  EXPECT_NE(Refusal([](NpuSpec& s) { s.max_resident_bytes = 1000; }).find("max_resident_bytes"), std::string::npos);
}

TEST(SimulatedDevice, CountsLoadedProgramsAndForgetsUnloadedOnes) {
  NpuSpec spec = M2Max();
  spec.max_programs = 1;
  const auto device = MakeSimulatedDevice(spec, 1);
  {
    const auto first = device->Compile(ExpertGraph(), "a");
    ASSERT_TRUE(first.ok());
    EXPECT_FALSE(device->Compile(ExpertGraph(), "b").ok());
  }
  EXPECT_TRUE(device->Compile(ExpertGraph(), "b").ok());
}

TEST(SimulatedDevice, CountsTheMemoryItHolds) {
  const auto device = MakeSimulatedDevice(M2Max(), 1);
  auto program = device->Compile(ExpertGraph({32}), "experts").value();
  EXPECT_EQ(program->HostBytes(), program->ResidentBytes());  // fp16 weights are used where they are
  const size_t before = device->HostBytes();
  const std::vector<uint16_t> x(kGroups * kDim * 32);
  std::vector<uint16_t> y(x.size());
  const TensorRef in[] = {{x.data(), x.size()}};
  const MutableTensorRef out[] = {{y.data(), y.size()}};
  ASSERT_TRUE(program->Run("rows_32", in, out, 0).ok());
  // gate, silu(gate) and up are alive together at most; the output is written where it is wanted.
  const size_t hidden = kGroups * kHidden * 32 * sizeof(uint16_t);
  EXPECT_EQ(device->HostBytes() - before, 3 * hidden);
}

TEST(CheckLimits, RefusesOpsThatLeaveTheNpu) {
  GraphBuilder b;
  b.BeginFunction("main");
  const ValueId x = b.Input("x", {ElemType::kF16, {1, 8, 1, 32}});
  const auto top = b.Add(OpKind::kTopK, {{"x", {x}},
                                         {"k", {b.Int(2)}},
                                         {"axis", {b.Int(1)}},
                                         {"ascending", {b.Bool(false)}},
                                         {"sort", {b.Bool(true)}},
                                         {"return_indices", {b.Bool(true)}},
                                         {"output_indices_dtype", {b.String("int32")}}});
  b.Output("y", top[0]);
  const Status status = CheckLimits(std::move(b).Finish().value(), M2Max(), "router");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("topk"), std::string::npos) << status.error().message;
}

TEST(SimulatedProgram, RefusesWrongSizesAndUnknownFunctions) {
  const auto device = MakeSimulatedDevice(M2Max(), 1);
  auto program = device->Compile(ExpertGraph(), "experts").value();
  const std::vector<uint16_t> x(10);
  std::vector<uint16_t> y(10);
  const TensorRef in[] = {{x.data(), x.size()}};
  const MutableTensorRef out[] = {{y.data(), y.size()}};
  EXPECT_FALSE(program->Run("rows_32", in, out, 0).ok());
  EXPECT_FALSE(program->Run("rows_33", in, out, 0).ok());
  EXPECT_FALSE(program->Run("rows_32", {}, out, 0).ok());
}

}  // namespace
}  // namespace npumoe
