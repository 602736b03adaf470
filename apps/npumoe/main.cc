// SPDX-License-Identifier: Apache-2.0
// npumoe: one binary, one file per subcommand beside this one.
#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/machine.h"
#include "npumoe/engine.h"

namespace npumoe {
namespace {

struct Command {
  std::string_view name;
  int (*run)(const std::vector<std::string>& args);
  std::string_view purpose;
};

constexpr Command kCommands[] = {
    {"run", RunRun, "continue a prompt and print the text as it comes"},
    {"chat", RunChat, "talk with a model"},
    {"info", RunInfo, "show what is in model files"},
    {"exec", RunExec, "run a Core ML package on .npy files"},
    {"eval", RunEval, "perplexity of a text, and what an NPU changes"},
    {"calibrate", RunCalibrate, "read texts and keep how the model routes them"},
    {"plot", RunPlot, "draw what calibrate gathered"},
    {"bench", RunBench, "measure prompt and generation speed"},
    {"plan", RunPlan, "decide what runs on an NPU and in which fixed shapes"},
    {"estimate", RunEstimate, "time and energy of one op on a simulated NPU"},
    {"simulate", RunSimulate, "what a prompt would take on a machine that is not here, plan by plan"},
    {"report", RunSimulationReport, "simulated figures of models and plans as one web page, beside the paper's"},
    {"compile", RunCompile, "make the programs of a plan ahead of time"},
    {"cache", RunCache, "list or remove compiled programs"},
    {"doctor", RunDoctor, "show what this machine and this build have"},
    {"make-model", RunMakeModel, "write a model with random weights, for tests and benchmarks"},
};

std::string Usage() {
  std::string text = "npumoe runs Mixture-of-Experts language models on the CPU and a static-graph NPU.\n\nUsage: npumoe COMMAND [FLAGS]\n\n";
  for (const Command& command : kCommands) text += fmt::format("  {:<11} {}\n", command.name, command.purpose);
  return text +
         "\n'npumoe COMMAND --help' shows the flags of a command, 'npumoe --version' the build.\n"
         "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.\n";
}

std::string Version() {
  const BuildInfo build = GetBuildInfo();
  return fmt::format("npumoe {} ({}, {}, {}{})\n", build.version, build.commit, build.compiler, SimdAndBlas(build),
                     build.is_debug ? ", debug" : "");
}

int Print(const std::string& text) {
  const Status written = WriteOut(text);
  return written.ok() ? kExitDone : FailWith(written.error());
}

int Main(std::vector<std::string> args) {
  PrepareStreams();
  if (args.empty()) {
    WriteErr(Usage());
    return kExitUsage;
  }
  for (const std::string& arg : args) {
    ShortenInNotes(arg);
    if (const size_t equals = arg.find('='); arg.starts_with("--") && equals != std::string::npos) {
      ShortenInNotes(std::string_view(arg).substr(equals + 1));
    }
  }
  // `npumoe help run` is `npumoe run --help`.
  if (args[0] == "help" && args.size() > 1) args = {args[1], "--help"};
  const std::string& name = args[0];
  if (name == "help" || name == "--help" || name == "-h") return Print(Usage());
  if (name == "--version" || name == "version") return Print(Version());
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run({args.begin() + 1, args.end()});
  }
  if (name == kCompilePackage) return RunCompilePackage({args.begin() + 1, args.end()});
  std::string names;
  for (const Command& command : kCommands) names += fmt::format("{}{}", names.empty() ? "" : ", ", command.name);
  return UsageError(fmt::format("unknown command '{}', wanted one of: {}", name, names));
}

}  // namespace
}  // namespace npumoe

int main(int argc, char** argv) {
  try {
    return npumoe::Main({argv + (argc > 0 ? 1 : 0), argv + argc});
  } catch (const std::bad_alloc&) {
    std::fputs("npumoe: out of memory\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "npumoe: %s\n", error.what());
  }
  return npumoe::kExitFailed;
}
