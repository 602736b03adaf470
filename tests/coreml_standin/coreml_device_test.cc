// SPDX-License-Identifier: Apache-2.0
// coreml_device.mm against the stand-in. After every test all objects of Core ML must be gone.
#include <gtest/gtest.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "graph/mlpackage/package_test.h"
#include "graph/npy.h"
#include "npu/coreml.h"
#include "standin.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;
using coreml_standin::Failure;
using coreml_standin::Knobs;
using coreml_standin::ReadLog;
using coreml_standin::SetKnobs;
using coreml_standin::Step;

using Bytes = std::vector<std::byte>;

constexpr long kCpuOnly = 0, kCpuAndGpu = 1, kCpuAndNeuralEngine = 3;  // MLComputeUnits

Bytes PackArray(const Array& array) {
  if (array.type.elem == ElemType::kF16) return HalfBytes(array.floats);
  if (array.type.elem == ElemType::kF32) return RawBytes(array.floats);
  return RawBytes(std::vector<int32_t>(array.ints.begin(), array.ints.end()));
}

// Small whole numbers, so that every executor gives the same.
Array Numbers(const ValueType& type, int seed) {
  Array array{type, {}, {}};
  for (size_t i = 0; i < type.elems(); ++i) {
    const int value = static_cast<int>(i * 7 + static_cast<size_t>(seed)) % 11 - 5;
    if (type.elem == ElemType::kI32) {
      array.ints.push_back(value);
    } else {
      array.floats.push_back(static_cast<float>(value));
    }
  }
  return array;
}

CoreMlFunction FunctionOf(const Function& function, bool named) {
  CoreMlFunction wanted{named ? function.name : "", {}, {}};
  for (const ValueId id : function.inputs)
    wanted.inputs.push_back({function.values[id].name, function.values[id].type});
  for (const ValueId id : function.outputs) {
    wanted.outputs.push_back({function.values[id].name, function.values[id].type});
  }
  return wanted;
}

// Memory for the outputs of one run, with bytes behind each that must stay as they are.
class Outputs {
 public:
  explicit Outputs(const CoreMlFunction& function) {
    for (const auto& output : function.outputs) {
      memory_.emplace_back(output.type.bytes() + kGuardBytes, std::byte{0xee});
      refs.push_back({memory_.back().data(), output.type.bytes()});
    }
  }
  // Without the guards.
  Bytes Get(size_t i) const {
    const Bytes& all = memory_[i];
    const auto end = all.end() - static_cast<ptrdiff_t>(kGuardBytes);
    EXPECT_TRUE(std::all_of(end, all.end(), [](std::byte b) { return b == std::byte{0xee}; }))
        << "written past the end";
    return {all.begin(), end};
  }
  std::vector<CoreMlOutput> refs;

 private:
  static constexpr size_t kGuardBytes = 64;
  std::vector<Bytes> memory_;
};

// Two functions over one weight, in another order than their names have, with two inputs and outputs of other types.
Graph TwoFunctions() {
  GraphBuilder b;
  std::vector<float> w(8);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i) - 3;
  uint32_t weight = 0;
  for (const size_t rows : {size_t{5}, size_t{3}}) {
    b.BeginFunction(rows == 5 ? "wide" : "narrow");
    if (rows == 5) weight = b.AddConstant({ElemType::kF16, {1, 8, 1, 1}}, HalfBytes(w));
    const ValueId x = b.Input("x", {ElemType::kF16, {1, 8, 1, rows}});
    const ValueId scale = b.Input("scale", {ElemType::kF32, {rows}});
    const ValueId n = b.Input("n", {ElemType::kI32, {2}});
    b.Output("scaled", b.Binary(OpKind::kMul, x, b.UseConstant(weight, "w")));
    b.Output("doubled", b.Binary(OpKind::kAdd, scale, scale));
    b.Output("n_doubled", b.Binary(OpKind::kAdd, n, n));
  }
  return std::move(b).Finish().value();
}

class CoreMlDevice : public testing::Test {
 protected:
  void SetUp() override { SetKnobs({}); }
  void TearDown() override { EXPECT_EQ(coreml_standin::LiveObjects(), 0) << "objects of Core ML are left"; }

  // Written and compiled.
  std::string Compiled(const Graph& graph, const std::string& name = "model") {
    const std::string package = scratch_.File(name + ".mlpackage"), compiled = scratch_.File(name + ".mlmodelc");
    const auto written = WritePackage(graph, package);
    EXPECT_TRUE(written.ok()) << written.error().message;
    const Status status = CompileCoreMl(package, compiled);
    EXPECT_TRUE(status.ok()) << status.error().message;
    return compiled;
  }

  static std::unique_ptr<CoreMlModel> Load(const std::string& compiled, const CoreMlFunction& function,
                                           ComputeUnits units = ComputeUnits::kCpuAndNeuralEngine) {
    auto model = LoadCoreMl(compiled, function, units);
    EXPECT_TRUE(model.ok()) << model.error().message;
    return model.ok() ? *std::move(model) : nullptr;
  }

  static Status Run(CoreMlModel& model, const std::vector<Bytes>& inputs, const Outputs& outputs) {
    std::vector<CoreMlInput> refs;
    for (const Bytes& input : inputs) refs.push_back({input.data(), input.size()});
    return model.Run(refs, outputs.refs);
  }

  // Runs a function on numbers and compares with the reference.
  static void ExpectReference(CoreMlModel& model, const Graph& graph, const Function& function, int seed = 0) {
    std::vector<Array> arrays;
    std::vector<Bytes> inputs;
    for (const ValueId id : function.inputs) {
      arrays.push_back(Numbers(function.values[id].type, seed++));
      inputs.push_back(PackArray(arrays.back()));
    }
    const Outputs outputs(FunctionOf(function, false));
    const Status status = Run(model, inputs, outputs);
    ASSERT_TRUE(status.ok()) << status.error().message;
    const auto wanted = RunReference(graph, function, arrays, Rounding::kF16);
    ASSERT_TRUE(wanted.ok());
    for (size_t i = 0; i < wanted->size(); ++i) {
      EXPECT_EQ(outputs.Get(i), PackArray((*wanted)[i])) << function.values[function.outputs[i]].name;
    }
  }

  static void ExpectError(const Error& error, Code code, const std::string& part) {
    EXPECT_EQ(ToString(error.code), ToString(code)) << error.message;
    EXPECT_NE(error.message.find(part), std::string::npos) << error.message << "\nwanted: " << part;
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
    EXPECT_TRUE(error.message.starts_with("Core ML: ")) << error.message;
  }

  static Knobs Fault(Step step, Failure failure, size_t nth = 1) {
    Knobs knobs;
    knobs.faults.push_back({step, nth, failure});
    return knobs;
  }

  // One run of ScaleGraph that must fail.
  void ExpectRunError(const Knobs& knobs, const std::string& part) {
    SCOPED_TRACE(part);
    const Graph graph = ScaleGraph();
    if (scale_.empty()) scale_ = Compiled(graph, "scale");
    const auto function = FunctionOf(graph.functions[0], false);
    const auto model = Load(scale_, function);
    ASSERT_NE(model, nullptr);
    SetKnobs(knobs);
    const Outputs outputs(function);
    const Status status = Run(*model, {PackArray(Numbers(function.inputs[0].type, 0))}, outputs);
    ASSERT_FALSE(status.ok());
    ExpectError(status.error(), Code::kDevice, part);
    SetKnobs({});
    ExpectReference(*model, graph, graph.functions[0]);  // the next run is well again
  }

  // A load of ScaleGraph that must fail.
  void ExpectLoadError(const CoreMlFunction& function, Code code, const std::string& part) {
    SCOPED_TRACE(part);
    if (scale_.empty()) scale_ = Compiled(ScaleGraph(), "scale");
    const auto model = LoadCoreMl(scale_, function, ComputeUnits::kCpuAndNeuralEngine);
    ASSERT_FALSE(model.ok());
    ExpectError(model.error(), code, part);
  }

  Scratch scratch_;
  std::string scale_;
};

const std::string kRefusal = "The stand-in refuses. (com.apple.CoreML 3): told to (npumoe.standin 7)";
const std::string kRaised = "raised NSInternalInconsistencyException: the stand-in was told to raise this";

TEST_F(CoreMlDevice, SaysWhatTheSystemCanDo) {
  struct utsname system {};
  ASSERT_EQ(::uname(&system), 0);
  const auto expect = [&](const char* macos, bool functions, bool placement) {
    Knobs knobs;
    knobs.macos = macos;
    SetKnobs(knobs);
    const CoreMlSystem described = DescribeCoreMl();
    EXPECT_TRUE(described.available);
    EXPECT_EQ(described.has_functions, functions) << macos;
    EXPECT_EQ(described.has_placement, placement) << macos;
    EXPECT_EQ(described.os_version, system.release);  // what GNUstep calls the system's version
  };
  expect("13.0", false, false);
  expect("14.3", false, false);
  expect("14.4", false, true);
  expect("15.0", true, true);
}

TEST_F(CoreMlDevice, CompilesToThePathThatWasAskedFor) {
  const std::string compiled = Compiled(ScaleGraph());
  EXPECT_TRUE(fs::exists(compiled + "/Manifest.json"));
  EXPECT_FALSE(ReadLog().compiled.empty());
  EXPECT_FALSE(fs::exists(ReadLog().compiled)) << "was copied, not moved";
}

TEST_F(CoreMlDevice, CompilesToNoPathThatIsTaken) {
  const std::string compiled = Compiled(ScaleGraph());
  SetKnobs({});
  const Status status = CompileCoreMl(scratch_.File("model.mlpackage"), compiled);
  ASSERT_FALSE(status.ok());
  ExpectError(status.error(), Code::kIo, "model.mlpackage': '" + compiled + "' exists, wanted a free path");
  EXPECT_TRUE(ReadLog().compiled.empty()) << "compiled in vain";
  EXPECT_TRUE(fs::exists(compiled + "/Manifest.json"));
}

TEST_F(CoreMlDevice, LeavesNothingWhenTheResultCannotBeMoved) {
  ASSERT_TRUE(WritePackage(ScaleGraph(), scratch_.File("model.mlpackage")).ok());
  const std::string compiled = scratch_.File("missing/model.mlmodelc");
  const Status status = CompileCoreMl(scratch_.File("model.mlpackage"), compiled);
  ASSERT_FALSE(status.ok());
  ExpectError(status.error(), Code::kIo, "cannot be moved to '" + compiled + "': ");
  EXPECT_FALSE(ReadLog().compiled.empty());
  EXPECT_FALSE(fs::exists(ReadLog().compiled));
}

TEST_F(CoreMlDevice, PassesOnWhyAPackageWasNotCompiled) {
  const auto expect = [&](const std::string& part) {
    const Status status = CompileCoreMl(scratch_.File("model.mlpackage"), scratch_.File("model.mlmodelc"));
    ASSERT_FALSE(status.ok());
    ExpectError(status.error(), Code::kDevice, part);
    EXPECT_FALSE(fs::exists(scratch_.File("model.mlmodelc")));
  };
  expect("Core ML: compiling '" + scratch_.File("model.mlpackage") +
         "': The stand-in refuses. (com.apple.CoreML 3): " + scratch_.File("model.mlpackage"));
  ASSERT_TRUE(WritePackage(ScaleGraph(), scratch_.File("model.mlpackage")).ok());
  SetKnobs(Fault(Step::kCompile, Failure::kError));
  expect(kRefusal);
  SetKnobs(Fault(Step::kCompile, Failure::kNoReason));
  expect("no reason given");
  SetKnobs(Fault(Step::kCompile, Failure::kRaise));
  expect(kRaised);
}

TEST_F(CoreMlDevice, RunsAPackage) {
  const Graph graph = ScaleGraph();
  const auto model = Load(Compiled(graph), FunctionOf(graph.functions[0], false));
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(ReadLog().function, "");
  for (int seed = 0; seed < 5; ++seed) ExpectReference(*model, graph, graph.functions[0], seed);
  EXPECT_EQ(ReadLog().n_asynchronous, 5);
  EXPECT_EQ(ReadLog().n_backings, 5);
  EXPECT_EQ(model->output_counts().in_place, 5);
  EXPECT_EQ(model->output_counts().copied, 0);
}

TEST_F(CoreMlDevice, RunsEveryFunctionOfAPackage) {
  const Graph graph = TwoFunctions();
  const std::string compiled = Compiled(graph);
  std::vector<std::unique_ptr<CoreMlModel>> models;
  for (const Function& function : graph.functions) {
    models.push_back(Load(compiled, FunctionOf(function, true)));
    ASSERT_NE(models.back(), nullptr);
    EXPECT_EQ(ReadLog().function, function.name);
  }
  fs::remove_all(compiled);  // what is loaded is loaded
  for (size_t i = 0; i < models.size(); ++i) ExpectReference(*models[i], graph, graph.functions[i]);
  EXPECT_EQ(models[1]->output_counts().in_place, 3);
}

TEST_F(CoreMlDevice, RunsOnSystemsWithoutAsynchronousPredictions) {
  const Graph graph = ScaleGraph();
  Knobs knobs;
  knobs.macos = "13.0";
  SetKnobs(knobs);
  const auto model = Load(Compiled(graph), FunctionOf(graph.functions[0], false));
  ASSERT_NE(model, nullptr);
  ExpectReference(*model, graph, graph.functions[0]);
  EXPECT_EQ(ReadLog().n_synchronous, 1);
  EXPECT_EQ(ReadLog().n_asynchronous, 0);
  EXPECT_EQ(model->output_counts().in_place, 1);
}

TEST_F(CoreMlDevice, LoadsForTheUnitsThatWereAskedFor) {
  const Graph graph = ScaleGraph();
  const std::string compiled = Compiled(graph);
  const auto function = FunctionOf(graph.functions[0], false);
  ASSERT_NE(Load(compiled, function, ComputeUnits::kCpuAndNeuralEngine), nullptr);
  EXPECT_EQ(ReadLog().units, kCpuAndNeuralEngine);
  ASSERT_NE(Load(compiled, function, ComputeUnits::kCpuAndGpu), nullptr);
  EXPECT_EQ(ReadLog().units, kCpuAndGpu);
  ASSERT_NE(Load(compiled, function, ComputeUnits::kCpuOnly), nullptr);
  EXPECT_EQ(ReadLog().units, kCpuOnly);
}

TEST_F(CoreMlDevice, CopiesOutputsThatCoreMlPutElsewhere) {
  const Graph graph = TwoFunctions();
  const std::string compiled = Compiled(graph);
  const auto model = Load(compiled, FunctionOf(graph.functions[0], true));
  ASSERT_NE(model, nullptr);
  size_t copied = 0;
  for (const size_t padding : {0, 1, 27}) {
    SCOPED_TRACE(padding);
    Knobs knobs;
    knobs.ignore_backings = true;
    knobs.padding = padding;
    SetKnobs(knobs);
    ExpectReference(*model, graph, graph.functions[0]);
    EXPECT_EQ(model->output_counts().copied, copied += 3);
  }
  EXPECT_EQ(model->output_counts().in_place, 0);
  Knobs one;
  one.ignored_backing = "doubled";
  one.padding = 3;
  SetKnobs(one);
  ExpectReference(*model, graph, graph.functions[0]);
  EXPECT_EQ(model->output_counts().copied, copied + 1);
  EXPECT_EQ(model->output_counts().in_place, 2);
}

TEST_F(CoreMlDevice, FailsAndRunsAgain) {
  for (const char* macos : {"15.0", "13.0"}) {
    SCOPED_TRACE(macos);
    for (const auto& [failure, part] : {std::pair{Failure::kError, kRefusal},
                                        {Failure::kNoReason, std::string("no reason given")},
                                        {Failure::kRaise, kRaised}}) {
      Knobs knobs = Fault(Step::kPredict, failure);
      knobs.macos = macos;
      ExpectRunError(knobs, part);
    }
  }
}

TEST_F(CoreMlDevice, OnlyTheFailedPredictionIsLost) {
  const Graph graph = ScaleGraph();
  const auto model = Load(Compiled(graph), FunctionOf(graph.functions[0], false));
  ASSERT_NE(model, nullptr);
  SetKnobs(Fault(Step::kPredict, Failure::kError, 3));
  const Outputs outputs(FunctionOf(graph.functions[0], false));
  const Bytes input = PackArray(Numbers({ElemType::kF16, {1, 16, 1, 4}}, 1));
  for (int run = 1; run <= 4; ++run) EXPECT_EQ(Run(*model, {input}, outputs).ok(), run != 3) << run;
  EXPECT_EQ(model->output_counts().in_place, 3);
}

TEST_F(CoreMlDevice, PassesOnWhyMemoryWasNotWrapped) {
  ExpectRunError(Fault(Step::kArray, Failure::kError, 1),
                 "'x': The stand-in refuses. (com.apple.CoreML 3): cannot wrap");
  ExpectRunError(Fault(Step::kArray, Failure::kError, 2),
                 "'y': The stand-in refuses. (com.apple.CoreML 3): cannot wrap");
  ExpectRunError(Fault(Step::kArray, Failure::kRaise, 2), kRaised);
  ExpectRunError(Fault(Step::kFeatures, Failure::kError), "not features");
  ExpectRunError(Fault(Step::kFeatures, Failure::kRaise), kRaised);
}

TEST_F(CoreMlDevice, RefusesOutputsThatWereNotDeclared) {
  Knobs reshaped, hidden;
  reshaped.reshaped_output = hidden.hidden_output = "y";
  ExpectRunError(reshaped, "output 'y' is fp16[1, 1, 16, 1, 4], wanted fp16[1, 16, 1, 4]");
  ExpectRunError(hidden, "gave no output 'y'");
}

TEST_F(CoreMlDevice, TakesTheRightNumberAndSizeOfTensorsOnly) {
  const Graph graph = ScaleGraph();
  const auto function = FunctionOf(graph.functions[0], false);
  const auto model = Load(Compiled(graph), function);
  ASSERT_NE(model, nullptr);
  std::vector<uint16_t> x(64), y(64);
  const CoreMlInput input{x.data(), 128}, short_input{x.data(), 126};
  const CoreMlOutput output{y.data(), 128}, long_output{y.data(), 130};
  const auto expect = [&](std::vector<CoreMlInput> inputs, std::vector<CoreMlOutput> outputs, const char* part) {
    const Status status = model->Run(inputs, outputs);
    ASSERT_FALSE(status.ok());
    ExpectError(status.error(), Code::kInvalidArgument, part);
  };
  expect({}, {output}, "0 inputs given, wanted 1");
  expect({input, input}, {output}, "2 inputs given, wanted 1");
  expect({input}, {}, "0 outputs given, wanted 1");
  expect({short_input}, {output}, "input 'x' has 126 bytes, wanted 128");
  expect({input}, {long_output}, "output 'y' has 130 bytes, wanted 128");
  EXPECT_EQ(ReadLog().n_asynchronous, 0);
}

TEST_F(CoreMlDevice, LoadsNothingButTheDeclaredFunction) {
  const auto good = FunctionOf(ScaleGraph().functions[0], false);
  auto function = good;
  function.inputs[0].type.dims = {1, 16, 1, 5};
  ExpectLoadError(function, Code::kDevice, "inputs: 'x' is fp16[1, 16, 1, 4], wanted fp16[1, 16, 1, 5]");
  function = good;
  function.outputs[0].type.elem = ElemType::kF32;
  ExpectLoadError(function, Code::kDevice, "outputs: 'y' is fp16[1, 16, 1, 4], wanted fp32[1, 16, 1, 4]");
  function = good;
  function.inputs[0].name = "z";
  ExpectLoadError(function, Code::kDevice, "inputs: no array 'z'");
  function = good;
  function.outputs.push_back(function.outputs[0]);
  ExpectLoadError(function, Code::kDevice, "outputs: 1 of them, wanted 2");
  function = good;
  function.inputs.clear();
  ExpectLoadError(function, Code::kDevice, "inputs: 1 of them, wanted 0");
  function = good;
  function.inputs[0].type.elem = ElemType::kBool;
  ExpectLoadError(function, Code::kInvalidArgument, "'x' is bool[1, 16, 1, 4], wanted fp16, fp32 or int32");
  function = good;
  function.name = "other";
  ExpectLoadError(function, Code::kDevice, "scale.mlmodelc', function 'other': The stand-in refuses.");
}

TEST_F(CoreMlDevice, NamesTypesOfWholeNumbersToo) {
  const Graph graph = TwoFunctions();
  scale_ = Compiled(graph);
  auto function = FunctionOf(graph.functions[1], true);
  function.inputs[2].type.elem = ElemType::kF32;
  ExpectLoadError(function, Code::kDevice, "inputs: 'n' is int32[2], wanted fp32[2]");
}

TEST_F(CoreMlDevice, NoticesAModelThatIsNotWhatWasCompiled) {
  const auto function = FunctionOf(ScaleGraph().functions[0], false);
  scale_ = Compiled(ScaleGraph(), "scale");
  Knobs reshaped, retyped, hidden;
  reshaped.reshaped_feature = "y";
  retyped.retyped_feature = "x";
  hidden.hidden_feature = "y";
  SetKnobs(reshaped);
  ExpectLoadError(function, Code::kDevice, "outputs: 'y' is fp16[1, 16, 1, 5], wanted fp16[1, 16, 1, 4]");
  SetKnobs(retyped);
  ExpectLoadError(function, Code::kDevice, "inputs: 'x' is fp32[1, 16, 1, 4], wanted fp16[1, 16, 1, 4]");
  SetKnobs(hidden);
  ExpectLoadError(function, Code::kDevice, "outputs: 0 of them, wanted 1");
}

TEST_F(CoreMlDevice, TakesModelsThatDoNotSayTheirOutputsShapes) {
  const Graph graph = ScaleGraph();
  const std::string compiled = Compiled(graph);
  Knobs knobs;
  knobs.shapeless_feature = "y";
  SetKnobs(knobs);
  const auto model = Load(compiled, FunctionOf(graph.functions[0], false));
  ASSERT_NE(model, nullptr);
  ExpectReference(*model, graph, graph.functions[0]);
}

TEST_F(CoreMlDevice, PassesOnWhyAModelWasNotLoaded) {
  const auto function = FunctionOf(ScaleGraph().functions[0], false);
  scale_ = Compiled(ScaleGraph(), "scale");
  SetKnobs(Fault(Step::kLoad, Failure::kError));
  ExpectLoadError(function, Code::kDevice, kRefusal);
  SetKnobs(Fault(Step::kLoad, Failure::kNoReason));
  ExpectLoadError(function, Code::kDevice, "no reason given");
  SetKnobs(Fault(Step::kLoad, Failure::kRaise));
  ExpectLoadError(function, Code::kDevice, kRaised);
  SetKnobs({});
  scale_ = scratch_.File("missing.mlmodelc");
  ExpectLoadError(function, Code::kDevice, "missing.mlmodelc");
}

TEST_F(CoreMlDevice, NeedsMacOs15ForFunctionsByName) {
  const Graph graph = TwoFunctions();
  scale_ = Compiled(graph);
  Knobs knobs;
  knobs.macos = "14.7";
  SetKnobs(knobs);
  ExpectLoadError(FunctionOf(graph.functions[0], true), Code::kUnsupported,
                  "function 'wide': functions are loaded by name from macOS 15 on");
  EXPECT_EQ(ReadLog().units, -1) << "tried to load";
}

TEST_F(CoreMlDevice, ModelsRunSideBySide) {
  const Graph graph = TwoFunctions();
  const std::string compiled = Compiled(graph);
  std::vector<std::thread> threads;
  for (const Function& function : graph.functions) {
    threads.emplace_back([&] {
      const auto model = Load(compiled, FunctionOf(function, true));
      ASSERT_NE(model, nullptr);
      for (int seed = 0; seed < 40; ++seed) ExpectReference(*model, graph, function, seed);
      EXPECT_EQ(model->output_counts().in_place, 120);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Strings, arrays, dictionaries, URLs and errors are none of Core ML's own objects.
TEST_F(CoreMlDevice, LeavesNoObjectsOfFoundationEither) {
  const Graph graph = TwoFunctions();
  const std::string compiled = Compiled(graph);
  const auto function = FunctionOf(graph.functions[0], true);
  const auto all = [&](int round) {
    SetKnobs({});
    const auto model = Load(compiled, function);
    ASSERT_NE(model, nullptr);
    ExpectReference(*model, graph, graph.functions[0]);
    EXPECT_TRUE(PlaceCoreMl(compiled, "wide", ComputeUnits::kCpuOnly).ok());
    EXPECT_TRUE(DescribeCoreMl().available);
    const std::string again = scratch_.File(fmt::format("again{}.mlmodelc", round));
    EXPECT_TRUE(CompileCoreMl(scratch_.File("model.mlpackage"), again).ok());
    EXPECT_FALSE(CompileCoreMl(scratch_.File("model.mlpackage"), again).ok());
    const Outputs outputs(function);
    for (const Failure failure : {Failure::kError, Failure::kRaise}) {
      for (const Step step : {Step::kArray, Step::kFeatures, Step::kPredict}) {
        SetKnobs(Fault(step, failure));
        EXPECT_FALSE(Run(*model, {Bytes(80), Bytes(20), Bytes(8)}, outputs).ok());
      }
      SetKnobs(Fault(Step::kLoad, failure));
      EXPECT_FALSE(LoadCoreMl(compiled, function, ComputeUnits::kCpuOnly).ok());
      SetKnobs(Fault(Step::kPlan, failure));
      EXPECT_FALSE(PlaceCoreMl(compiled, "wide", ComputeUnits::kCpuOnly).ok());
    }
  };
  // GNUstep makes some objects once and keeps them.
  coreml_standin::LiveFoundationObjects();
  for (int round = 0; round < 3; ++round) all(round);
  const long before = coreml_standin::LiveFoundationObjects();
  for (int round = 3; round < 6; ++round) all(round);
  EXPECT_EQ(coreml_standin::LiveFoundationObjects(), before);
}

std::vector<std::string> Shown(const std::vector<OpPlacement>& placements, bool constants = false) {
  std::vector<std::string> lines;
  for (const OpPlacement& p : placements) {
    if (p.op == "const" && !constants) continue;
    lines.push_back(fmt::format("{} {} '{}' {} {}", p.op, p.output, p.preferred, p.npu_supported, p.cost));
  }
  return lines;
}

TEST_F(CoreMlDevice, SaysWhereOpsWouldRun) {
  const std::string compiled = Compiled(TwoFunctions());
  using Lines = std::vector<std::string>;
  const auto placed = [&](std::string_view function, ComputeUnits units) {
    const auto placements = PlaceCoreMl(compiled, function, units);
    EXPECT_TRUE(placements.ok()) << placements.error().message;
    return placements.ok() ? *placements : std::vector<OpPlacement>{};
  };
  const std::string third = fmt::format("{}", 1.0 / 3);
  EXPECT_EQ(Shown(placed("wide", ComputeUnits::kCpuAndNeuralEngine)),
            (Lines{"mul scaled 'NPU' true " + third, "add doubled 'NPU' true " + third,
                   "add n_doubled 'NPU' true " + third}));
  EXPECT_EQ(ReadLog().units, kCpuAndNeuralEngine);
  EXPECT_EQ(ReadLog().function, "wide");
  EXPECT_EQ(Shown(placed("narrow", ComputeUnits::kCpuAndGpu)),
            (Lines{"mul scaled 'GPU' false " + third, "add doubled 'GPU' false " + third,
                   "add n_doubled 'GPU' false " + third}));
  EXPECT_EQ(ReadLog().units, kCpuAndGpu);
  EXPECT_EQ(Shown(placed("narrow", ComputeUnits::kCpuOnly))[0], "mul scaled 'CPU' false " + third);
  EXPECT_EQ(Shown(placed("wide", ComputeUnits::kCpuOnly), true)[0], "const w '' false 0");
}

TEST_F(CoreMlDevice, SaysWhenAnOpLeavesTheNpu) {
  const std::string compiled = Compiled(ScaleGraph());
  Knobs knobs;
  for (const auto& [device, line] : {std::pair{"CPU", "mul y 'CPU' true 1"}, {"", "mul y '' true 1"}}) {
    knobs.device_of["mul"] = device;
    SetKnobs(knobs);
    const auto placements = PlaceCoreMl(compiled, "", ComputeUnits::kCpuAndNeuralEngine);
    ASSERT_TRUE(placements.ok()) << placements.error().message;
    EXPECT_EQ(Shown(*placements), std::vector<std::string>{line});
  }
  EXPECT_EQ(ReadLog().function, "");
}

TEST_F(CoreMlDevice, PassesOnWhyOpsWereNotPlaced) {
  const std::string compiled = Compiled(TwoFunctions());
  const auto expect = [&](const Knobs& knobs, std::string_view function, Code code, const std::string& part) {
    SetKnobs(knobs);
    const auto placements = PlaceCoreMl(compiled, function, ComputeUnits::kCpuAndNeuralEngine);
    ASSERT_FALSE(placements.ok());
    ExpectError(placements.error(), code, part);
  };
  expect(Fault(Step::kPlan, Failure::kError), "wide", Code::kDevice, kRefusal);
  expect(Fault(Step::kPlan, Failure::kNoReason), "wide", Code::kDevice, "no reason given");
  expect(Fault(Step::kPlan, Failure::kRaise), "wide", Code::kDevice, kRaised);
  expect({}, "other", Code::kDevice, "no function 'other'");
  Knobs knobs;
  knobs.plan_without_program = true;
  expect(knobs, "wide", Code::kDevice, "the plan has no such function");
  knobs = {};
  knobs.macos = "14.3";
  expect(knobs, "", Code::kUnsupported, "ops are placed beforehand from macOS 14.4 on");
  knobs.macos = "14.4";
  expect(knobs, "wide", Code::kUnsupported, "functions are loaded by name from macOS 15 on");
}

// Packages of Apple's making, beside the source tree; absent in a fresh clone. Their stored outputs take sums in
// another order, so that a value may fall to either side of the middle between two fp16 numbers, once per op on the
// way.
TEST_F(CoreMlDevice, RunsPackagesOfApplesMaking) {
  const fs::path folder = fs::path(NM_SOURCE_DIR) / ".." / "shared" / "coreml_ref";
  size_t n_run = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (entry.path().extension() != ".mlpackage") continue;
    SCOPED_TRACE(entry.path().filename());
    const auto package = ReadPackage(entry.path().string());
    ASSERT_TRUE(package.ok()) << package.error().message;
    const std::string compiled = scratch_.File(entry.path().stem().string() + ".mlmodelc");
    const Status status = CompileCoreMl(entry.path().string(), compiled);
    ASSERT_TRUE(status.ok()) << status.error().message;
    for (const Function& function : package->graph.functions) {
      fs::path io = fs::path(entry.path()).replace_extension(".io");
      if (package->metadata.multi_function) io /= function.name;
      const auto wanted = FunctionOf(function, package->metadata.multi_function);
      const auto model = Load(compiled, wanted);
      ASSERT_NE(model, nullptr);
      std::vector<Bytes> inputs;
      for (const auto& input : wanted.inputs) {
        auto array = ReadNpy((io / ("in_" + input.name + ".npy")).string());
        ASSERT_TRUE(array.ok()) << array.error().message;
        auto fitted = FitArray(*std::move(array), input.type, input.name);
        ASSERT_TRUE(fitted.ok()) << fitted.error().message;
        inputs.push_back(PackArray(*fitted));
      }
      const Outputs outputs(wanted);
      ASSERT_TRUE(Run(*model, inputs, outputs).ok());
      for (size_t i = 0; i < wanted.outputs.size(); ++i) {
        const auto stored = ReadNpy((io / (wanted.outputs[i].name + ".npy")).string());
        ASSERT_TRUE(stored.ok()) << stored.error().message;
        ASSERT_EQ(stored->type, wanted.outputs[i].type);
        ASSERT_EQ(stored->type.elem, ElemType::kF16);
        const Bytes bytes = outputs.Get(i);
        std::vector<uint16_t> halves(stored->floats.size());
        std::memcpy(halves.data(), bytes.data(), bytes.size());
        float top = 0, worst = 0;
        for (size_t k = 0; k < halves.size(); ++k) {
          top = std::max(top, std::fabs(stored->floats[k]));
          worst = std::max(worst, std::fabs(stored->floats[k] - F16ToF32(halves[k])));
        }
        EXPECT_LE(worst, 4 * std::exp2(std::floor(std::log2(top)) - 10)) << wanted.outputs[i].name;
        EXPECT_GT(top, 0);
      }
      ++n_run;
    }
  }
  if (n_run == 0) GTEST_SKIP() << "no packages in " << folder;
}

}  // namespace
}  // namespace npumoe
