// SPDX-License-Identifier: Apache-2.0
// `npumoe compile`: makes all programs of a plan ahead of the first prompt.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/npu_flags.h"
#include "apps/npumoe/progress.h"
#include "apps/npumoe/text.h"
#include "npumoe/engine.h"
#include "npumoe/programs.h"

namespace npumoe {
namespace {

constexpr uint32_t kMaxParallel = 64;  // above the cores of any machine with an NPU

struct Totals {
  size_t n_kept = 0, n_failed = 0;
  uint64_t bytes = 0;
};

Totals Sum(const CompileReport& report) {
  Totals totals;
  for (const CompiledProgram& program : report.programs) {
    totals.n_kept += program.kept;
    totals.n_failed += !program.failure.empty();
    totals.bytes += program.size_bytes;
  }
  return totals;
}

std::string CompileJson(const CompileReport& report) {
  nlohmann::ordered_json json = {{"npu", report.npu},
                                 {"plan", ReplaceInvalidUtf8(report.plan)},
                                 {"compiled", report.compiled},
                                 {"programs", nlohmann::ordered_json::array()}};
  for (const CompiledProgram& program : report.programs) {
    json["programs"].push_back({{"name", program.name},
                                {"package", ReplaceInvalidUtf8(program.package)},
                                {"size_bytes", program.size_bytes},
                                {"kept", program.kept},
                                {"failure", ReplaceInvalidUtf8(program.failure)}});
  }
  return json.dump(2) + "\n";
}

std::string CompileSummary(const CompileReport& report) {
  const Totals totals = Sum(report);
  return fmt::format("{} programs for {}, {}: {} made, {} kept, {} refused{}\nplan: {}\n", report.programs.size(),
                     report.npu, FormatBytes(totals.bytes), report.programs.size() - totals.n_kept - totals.n_failed,
                     totals.n_kept, totals.n_failed,
                     report.compiled ? "; compiled by Core ML" : "; packages only: Core ML is not on this system",
                     OneLine(report.plan));
}

}  // namespace

int RunCompile(const std::vector<std::string>& args) {
  CLI::App app("Makes the programs of a plan: Core ML packages, and on a Mac what Core ML compiles them to.", "compile");
  EngineFlags engine;
  NpuFlags npu;
  CompileOptions compile;
  bool as_json = false;
  engine.AddTo(app);
  npu.AddTo(app);
  app.add_option("-o,--out", compile.out_dir,
                 "folder for the packages; without it they are only compiled, or lie beside the model where there is no "
                 "Core ML")
      ->check(NotStdout("a folder"));
  app.add_option("-j,--parallel", compile.n_parallel, "programs in work at once [2]")->check(WholeIn(1, kMaxParallel));
  app.add_flag("--json", as_json, "JSON");
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  auto options = engine.Options();
  if (!options) return UsageError("compile: " + options.error().message);
  if (!npu.wanted()) npu.UseDefault(engine.model());
  if (const Status filled = npu.Fill(*options); !filled) return UsageError("compile: " + filled.error().message);
  if (const Status good = npu.CheckNoTrace(); !good) return UsageError("compile: " + good.error().message);
  if (const Status good = engine.CheckNoPrompt(); !good) return UsageError("compile: " + good.error().message);

  Progress planning("planning");
  const auto report = CompilePrograms(
      engine.model(), *options, compile,
      [&](const CompiledProgram& done, size_t n_done, size_t n_total) {
        if (n_done == 0) {
          planning.Clear();
          CatchInterrupts(Keeps::kWork);  // from here on there is something to keep
          return true;
        }
        const std::string what = !done.failure.empty() ? "refused: " + done.failure : done.kept ? "kept" : "made";
        Note(fmt::format("compile: {} of {}: {}, {} {}", n_done, n_total, done.name, FormatBytes(done.size_bytes), what));
        return !Interrupted();
      },
      ShowingTime(planning));
  planning.Clear();
  if (Interrupted()) {
    return ExitInterrupted("what is made is kept");
  }
  if (!report) return FailWith(report.error());
  npu.NoteWhatIsOtherwise(report->lengths);
  const Status written = WriteOut(as_json ? CompileJson(*report) : CompileSummary(*report));
  if (!written) return FailWith(written.error());
  return Sum(*report).n_failed == 0 ? kExitDone : kExitFailed;
}

int RunCompilePackage(const std::vector<std::string>& args) {
  // A child that Ctrl-C ends dies of it, by which its parent knows that the package is not to blame.
  LetInterruptsKill();
  if (args.size() != 3) return UsageError("compile-package: wants PACKAGE COMPILED UNITS");
  const Status status = CompilePackage(args[0], args[1], args[2]);
  if (status) return kExitDone;
  static_cast<void>(WriteOut(OneLine(status.error().message) + "\n"));  // the caller reads it there
  return kExitFailed;
}

}  // namespace npumoe
