// SPDX-License-Identifier: Apache-2.0
// The demo model through the Core ML backend, with a stand-in for Core ML: the tokens of the simulated device, whatever
// Core ML does.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>

#include "base/test_effort.h"
#include "npumoe/engine.h"
#include "npumoe/programs.h"
#include "npumoe/self_test.h"
#include "standin.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;
using namespace coreml_standin;

const std::string kModels = std::string(NM_SOURCE_DIR) + "/models/";
constexpr size_t kPromptTokens = AllOrFew(400, 200), kNewTokens = AllOrFew(12, 4);

struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // after the prompt
  RunReport report;
};

class CoreMlModelTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "npumoe_coreml_XXXXXX";
    cache_ = ::mkdtemp(pattern.data());
    SetKnobs({});
  }
  void TearDown() override {
    EXPECT_EQ(LiveObjects(), 0);
    std::error_code ignored;
    fs::remove_all(cache_, ignored);
  }

  static EngineOptions BaseOptions(const std::string& device) {
    EngineOptions options;
    options.n_threads = 2;
    options.context_tokens = 512;
    options.npu.device = device;
    options.npu.make_plan = true;
    options.npu.plan.chunk_tokens = 128;
    options.npu.plan.moe_batch_tokens = 512;
    options.npu.plan.placement = "tiers+groups";  // by choice, so small a model runs on the CPU
    return options;
  }
  EngineOptions Options(const std::string& device) const {
    EngineOptions options = BaseOptions(device);
    options.npu.spec = "m2-max";
    options.npu.cache_folder = cache_;
    return options;
  }

  static Outcome Generate(const EngineOptions& options) {
    Outcome outcome;
    auto engine = Engine::Open(kModels + "demo-moe.gguf", options);
    if (!engine.ok()) {
      ADD_FAILURE() << engine.error().message;
      return outcome;
    }
    std::ifstream file(kModels + "heldout/prose.txt");
    std::stringstream text;
    text << file.rdbuf();
    auto prompt = engine->Tokenize(text.str().substr(0, 4000), true, false);
    prompt.resize(kPromptTokens);
    Session session = engine->NewSession().value();
    EXPECT_TRUE(session.Append(prompt).ok());
    outcome.logits.assign(session.logits().begin(), session.logits().end());
    for (size_t i = 0; i < kNewTokens; ++i) {
      const auto logits = session.logits();
      const int32_t best = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
      outcome.tokens.push_back(best);
      EXPECT_TRUE(session.Append(std::span(&best, 1)).ok());
    }
    outcome.report = session.report();
    return outcome;
  }

  static const Outcome& Simulated() {
    static const Outcome outcome = Generate(BaseOptions("sim:m2-max"));
    return outcome;
  }

  // The same tokens and logits as the simulated device gives, with nothing fallen back.
  static void ExpectEqual(const Outcome& outcome) {
    EXPECT_EQ(outcome.tokens, Simulated().tokens);
    EXPECT_EQ(outcome.logits, Simulated().logits);
    EXPECT_TRUE(outcome.report.fallbacks.empty()) << outcome.report.fallbacks.begin()->first;
    EXPECT_FALSE(outcome.report.simulated);
    EXPECT_EQ(outcome.report.Experts().dispatches, Simulated().report.Experts().dispatches);
    EXPECT_EQ(outcome.report.Attention().dispatches, Simulated().report.Attention().dispatches);
    EXPECT_GT(outcome.report.Experts().dispatches, 0u);
    EXPECT_GT(outcome.report.Attention().dispatches, 0u);
  }

  std::string cache_;
};

// Which capacities are chosen does not depend on the time that runs take, so the two devices do the same work.
TEST_F(CoreMlModelTest, TokensOfTheSimulatedDeviceInEveryPlacement) {
  // All experts in one program, and in groups with tiers; and what is between them.
  constexpr const char* kPlacements[] = {"naive", "all", "anemll", "base", "tiers"};
  for (const char* placement : std::span(kPlacements).first(AllOrFew(5, 2))) {
    EngineOptions simulated = BaseOptions("sim:m2-max"), real = Options("coreml");
    simulated.npu.plan.placement = real.npu.plan.placement = placement;
    const Outcome wanted = Generate(simulated), got = Generate(real);
    EXPECT_EQ(got.tokens, wanted.tokens) << placement;
    EXPECT_EQ(got.logits, wanted.logits) << placement;
    EXPECT_TRUE(got.report.fallbacks.empty()) << placement;
    EXPECT_GT(got.report.Experts().dispatches + got.report.Attention().dispatches, 0u) << placement;
  }
}

TEST_F(CoreMlModelTest, TokensOfTheSimulatedDevice) {
  const Outcome outcome = Generate(Options("coreml"));
  ExpectEqual(outcome);
  EXPECT_GT(outcome.report.prefill_seconds, 0);
  EXPECT_GT(outcome.report.Experts().npu_seconds, 0);
  EXPECT_GT(ReadLog().n_asynchronous, 0u);
  EXPECT_EQ(outcome.report.npu_joules, 0) << "nobody counted it";
}

TEST_F(CoreMlModelTest, CompiledProgramsAreFoundAgain) {
  Generate(Options("coreml"));
  EXPECT_NE(ReadLog().compiled, "");
  const auto kept = ListPrograms(cache_);
  EXPECT_GT(kept.size(), 0u);
  SetKnobs({});
  ExpectEqual(Generate(Options("coreml")));
  EXPECT_EQ(ReadLog().compiled, "") << "nothing was left to compile";
  EXPECT_EQ(ListPrograms(cache_).size(), kept.size());
  // Other compute units are other programs.
  Generate(Options("coreml:gpu"));
  EXPECT_EQ(ReadLog().units, 1) << "MLComputeUnitsCPUAndGPU";
  EXPECT_EQ(ListPrograms(cache_).size(), 2 * kept.size());
}

TEST_F(CoreMlModelTest, SystemsWithoutFunctions) {
  Knobs knobs;
  knobs.macos = "13.0";
  SetKnobs(knobs);
  ExpectEqual(Generate(Options("coreml")));
  EXPECT_EQ(ReadLog().function, "");
  EXPECT_GT(ReadLog().n_synchronous, 0u);
}

TEST_F(CoreMlModelTest, OutputsElsewhereAndStrided) {
  Knobs knobs;
  knobs.ignore_backings = true;
  knobs.padding = 5;
  SetKnobs(knobs);
  ExpectEqual(Generate(Options("coreml")));
}

TEST_F(CoreMlModelTest, FailingRunsFallBackVisibly) {
  Generate(Options("coreml"));
  SetKnobs({});
  Generate(Options("coreml"));
  const size_t n_runs = ReadLog().n_asynchronous;
  for (const Failure failure : {Failure::kError, Failure::kNoReason, Failure::kRaise}) {
    Knobs knobs;
    knobs.faults = {{Step::kPredict, n_runs - 1, failure}};  // near the end of the prompt
    SetKnobs(knobs);
    const Outcome outcome = Generate(Options("coreml"));
    EXPECT_EQ(outcome.tokens, Simulated().tokens);
    ASSERT_EQ(outcome.report.fallbacks.size(), 1u);
    EXPECT_NE(outcome.report.fallbacks.begin()->first.find("Core ML"), std::string::npos);
  }
}

TEST_F(CoreMlModelTest, VerdictsAreRemembered) {
  Knobs knobs;
  knobs.faults = {{Step::kCompile, 2, Failure::kError}};
  SetKnobs(knobs);
  const Outcome first = Generate(Options("coreml"));
  EXPECT_EQ(first.tokens, Simulated().tokens);
  ASSERT_EQ(first.report.fallbacks.size(), 1u);
  SetKnobs({});
  const Outcome second = Generate(Options("coreml"));
  EXPECT_EQ(second.tokens, Simulated().tokens);
  ASSERT_EQ(second.report.fallbacks.size(), 1u);
  EXPECT_NE(second.report.fallbacks.begin()->first.find("remembered"), std::string::npos);
  const auto failed = [](const CachedProgram& program) { return !program.failure.empty(); };
  EXPECT_EQ(std::ranges::count_if(ListPrograms(cache_), failed), 1);
  EXPECT_EQ(RemovePrograms(cache_, failed)->n_programs, 1u);
  ExpectEqual(Generate(Options("coreml")));
}

// A package that kills whatever compiles it does not kill the engine.
TEST_F(CoreMlModelTest, CompilerThatDies) {
  EngineOptions options = Options("coreml");
  options.npu.compiler = {"/bin/sh", "-c", "kill -SEGV $$"};
  const Outcome outcome = Generate(options);
  EXPECT_EQ(outcome.report.Experts().dispatches + outcome.report.Attention().dispatches, 0u);
  ASSERT_FALSE(outcome.report.fallbacks.empty());
  for (const auto& [reason, times] : outcome.report.fallbacks) {
    EXPECT_NE(reason.find("the compiling process: ended by signal 11"), std::string::npos) << reason;
  }
  EXPECT_EQ(outcome.tokens.size(), kNewTokens);
}

// Ctrl-C reaches the compiling process too: nothing is remembered against the package.
TEST_F(CoreMlModelTest, CompilerThatIsInterrupted) {
  EngineOptions options = Options("coreml");
  options.npu.compiler = {"/bin/sh", "-c", "kill -INT $$"};
  CompileOptions compile;
  const auto report = CompilePrograms(kModels + "demo-moe.gguf", options, compile, {});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::kCancelled) << report.error().message;
  const auto failed = [](const CachedProgram& program) { return !program.failure.empty(); };
  EXPECT_EQ(std::ranges::count_if(ListPrograms(cache_), failed), 0);
  ExpectEqual(Generate(Options("coreml")));
}

TEST_F(CoreMlModelTest, CompilerOfItsOwnProcess) {
  EngineOptions options = Options("coreml");
  // The stand-in's compiled form is a copy.
  options.npu.compiler = {"/bin/sh", "-c", "test \"$3\" = ane && cp -r \"$1\" \"$2\"", "sh"};
  ExpectEqual(Generate(options));
  EXPECT_EQ(ReadLog().compiled, "") << "not in this process";
}

TEST_F(CoreMlModelTest, IsKeptWarm) {
  EngineOptions options = Options("coreml");
  options.npu.keep_warm_seconds = 60;
  auto engine = Engine::Open(kModels + "demo-moe.gguf", options);
  ASSERT_TRUE(engine.ok());
  Session session = engine->NewSession().value();
  ASSERT_TRUE(session.Append(std::vector<int32_t>(100, 5)).ok());
  const size_t before = ReadLog().n_asynchronous;
  for (int i = 0; i < 6000 && ReadLog().n_asynchronous < before + 3; ++i) ::usleep(10000);
  EXPECT_GE(ReadLog().n_asynchronous, before + 3);
}

TEST_F(CoreMlModelTest, FolderThatCannotBeWritten) {
  EngineOptions options = Options("coreml");
  options.npu.cache_folder = cache_ + "/file";
  std::ofstream(options.npu.cache_folder) << "in the way";
  const Outcome outcome = Generate(options);
  ExpectEqual(outcome);
  EXPECT_NE(outcome.report.note.find("cannot write"), std::string::npos);
}

TEST_F(CoreMlModelTest, CompilesAheadAndResumes) {
  CompileOptions compile;
  compile.out_dir = cache_ + "/packages";
  size_t n_seen = 0;
  const auto stopped = CompilePrograms(kModels + "demo-moe.gguf", Options("coreml"), compile,
                                       [&](const CompiledProgram&, size_t, size_t) { return ++n_seen < 3; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, Code::kCancelled);
  const auto report = CompilePrograms(kModels + "demo-moe.gguf", Options("coreml"), compile, {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_TRUE(report->compiled);
  EXPECT_GE(std::ranges::count_if(report->programs, [](const CompiledProgram& p) { return p.kept; }), 3);
  for (const CompiledProgram& program : report->programs) {
    EXPECT_EQ(program.failure, "");
    EXPECT_TRUE(fs::exists(program.package)) << program.package;
  }
  EXPECT_EQ(ListPrograms(cache_).size(), report->programs.size());
  SetKnobs({});
  ExpectEqual(Generate(Options("coreml")));
  EXPECT_EQ(ReadLog().compiled, "");
}

TEST_F(CoreMlModelTest, SelfTestMeasuresForThePlanner) {
#if defined(NM_DEBUG_CHECKS)
  GTEST_SKIP() << "its convolutions take minutes under the sanitizers";
#endif
  Knobs knobs;
  knobs.device_of = {{"softmax", "CPU"}};
  SetKnobs(knobs);
  EngineOptions options = Options("coreml");
  options.npu.spec.clear();
  const auto report = RunSelfTest(
      options, [](const std::string&) { return true; }, 1);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_TRUE(report->passed);
  EXPECT_FALSE(report->simulated);
  size_t n_compared = 0, n_softmax = 0;
  for (const Probe& probe : report->probes) {
    EXPECT_EQ(probe.failure, "") << probe.name;
    EXPECT_GT(std::ranges::count(probe.placements, "NPU", &OpPlacement::preferred), 0) << probe.name;
    n_compared += probe.compared;
    n_softmax += static_cast<size_t>(std::ranges::count_if(
        probe.placements, [](const OpPlacement& p) { return p.op == "softmax" && p.preferred == "CPU"; }));
  }
  EXPECT_GE(n_compared, 6u);
  EXPECT_GT(n_softmax, 0u) << "placement is told op by op";
  ASSERT_TRUE(fs::exists(report->spec_path));
  // Plans now stand on the measured numbers: one made before is stale.
  PlanOptions of_table;
  of_table.npu = "sim:" + report->npu;
  const auto of_machine = MakePlanDocument(kModels + "demo-moe.gguf", "", "", of_table);
  ASSERT_TRUE(of_machine.ok());
  const std::string path = cache_ + "/plan.json";
  std::ofstream(path) << of_machine->json;
  options.npu.make_plan = false;
  options.npu.plan_path = path;
  const auto stale = Engine::Open(kModels + "demo-moe.gguf", options);
  ASSERT_FALSE(stale.ok());
  EXPECT_NE(stale.error().message.find("stale: made for other numbers of npu"), std::string::npos)
      << stale.error().message;
}

}  // namespace
}  // namespace npumoe
