// SPDX-License-Identifier: Apache-2.0
// `npumoe eval`: perplexity of texts, tasks with known answers, and with an NPU the agreement with the exact run on the
// CPU.
#include "npumoe/eval.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/eval_report.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/npu_flags.h"
#include "apps/npumoe/progress.h"
#include "apps/npumoe/text.h"

namespace npumoe {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;
constexpr uint64_t kMaxItems = uint64_t{1} << 32;

std::string TaskHelp() {
  std::string text = "Tasks, for --task:\n";
  for (const EvalTask& task : EvalTasks()) text += fmt::format("  {:<18} {}\n", task.name, task.purpose);
  return text +
         "Files of multiple choice come with --data; retrieval texts are made from --seed. Shares are followed by "
         "their 95 % "
         "interval.";
}

struct EvalFlags {
  EngineFlags engine;
  NpuFlags npu;
  std::string file;
  EvalOptions options;
  TaskOptions task;
  bool json = false, stats = false, no_agreement = false;

  void AddTo(CLI::App& app) {
    engine.AddTo(app);
    npu.AddTo(app);
    const std::string group = "Evaluation", tasks = "Tasks";
    app.add_option("-f,--file,--data", file, "text to read, or the items of --task; - reads stdin")
        ->take_last()
        ->group(group);
    max_tokens_ = app.add_option("--max-tokens", options.max_tokens, "read no more than so many tokens; 0 = all");
    window_ = app.add_option("--window", options.window_tokens, "tokens read together; 0 = the context, at most 2048");
    for (CLI::Option* option : {max_tokens_, window_}) option->take_last()->group(group);
    agreement_ = app.add_flag("--no-agreement", no_agreement, "with --npu: do not run the CPU's exact run beside it");
    stats_ = app.add_flag("--stats", stats, "with --npu: print what it did, layer by layer");
    for (CLI::Option* option : {agreement_, stats_}) option->group(group);
    app.add_flag("--json", json, "print one JSON object")->group(group);
    std::vector<std::string_view> names;
    for (const EvalTask& known : EvalTasks()) names.push_back(known.name);
    app.add_option("--task", task.task, "multiple choice or retrieval instead of perplexity; names below")
        ->check(MemberOf(names))
        ->take_last()
        ->group(tasks);
    shots_ =
        app.add_option("--shots", task.n_shots,
                       "multiple choice: the file's first so many items, solved, before each; never the item itself");
    length_ = app.add_option("--length", task.length_tokens,
                             "retrieval: tokens of text, questions and answers [the context, at most 4096]");
    seed_ = app.add_option("-s,--seed", task.seed, "retrieval: which texts are made [1]");
    limit_ = app.add_option("--limit", task.max_items, "items [all of the file, 100 of retrieval]");
    resume_ = app.add_option("--resume", task.log_path,
                             "log of finished items: made when missing, gone on after when it is there");
    resume_->check(NotStdout("a file"));
    shots_->check(WholeIn(0, 1000));
    length_->check(WholeIn(1, kMaxContextTokens));
    limit_->check(WholeIn(1, kMaxItems));
    seed_->check(WholeIn(0, UINT64_MAX));
    max_tokens_->check(WholeIn(0, uint64_t{1} << 40));
    window_->check(WholeIn(0, kMaxContextTokens));
    for (CLI::Option* option : {shots_, length_, seed_, limit_, resume_}) option->take_last()->group(tasks);
  }

  // What does not go together, as a usage error.
  Status Check() {
    if (const Status bad = npu.wanted() ? Status(Ok{}) : Refuse({agreement_, stats_}, "wants --npu too"); !bad)
      return bad;
    if (options.window_tokens == 1) {
      return Error{Code::kInvalidArgument, "--window: wants 0 or at least 2 tokens, got 1"};
    }
    if (task.task.empty()) {
      if (file.empty()) return Error{Code::kInvalidArgument, "--file is required, or --task"};
      return Refuse({shots_, length_, seed_, limit_, resume_}, "wants --task too");
    }
    const auto known = EvalTasks();
    const bool from_file = std::ranges::find(known, task.task, &EvalTask::name)->from_file;
    if (from_file != !file.empty()) {
      return Error{Code::kInvalidArgument,
                   fmt::format("--task {}: {}", task.task,
                               from_file ? "wants its items, --data FILE" : "makes its own texts, not --data")};
    }
    if (const Status bad = Refuse({max_tokens_, window_}, "not with --task"); !bad) return bad;
    return from_file ? Refuse({length_, seed_}, "of retrieval tasks only")
                     : Refuse({shots_}, "of multiple choice only");
  }

 private:
  CLI::Option *max_tokens_ = nullptr, *window_ = nullptr, *shots_ = nullptr, *length_ = nullptr, *seed_ = nullptr,
              *limit_ = nullptr, *resume_ = nullptr, *agreement_ = nullptr, *stats_ = nullptr;
};

struct Engines {
  Engine engine;
  std::optional<Engine> exact;  // on the CPU, beside an NPU
};

Result<Engines> OpenEngines(const EvalFlags& flags, const EngineOptions& options) {
  auto engine = OpenEngine(flags.engine.model(), options);
  if (!engine) return engine.error();
  Engines engines{std::move(*engine), std::nullopt};
  if (!flags.npu.wanted() || flags.no_agreement) return engines;
  EngineOptions on_cpu = options;
  on_cpu.npu = {};
  if (on_cpu.activation_bits == 0) on_cpu.activation_bits = 16;  // what the CPU does beside an NPU
  auto exact = OpenEngine(flags.engine.model(), on_cpu);
  if (!exact) return exact.error();
  engines.exact.emplace(std::move(*exact));
  return engines;
}

int Print(const EvalFlags& flags, const std::string& text, const RunReport& npu) {
  if (const Status written = WriteOut(text); !written) return FailWith(written.error());
  if (flags.npu.wanted() && (flags.stats || !flags.json)) PrintNpuReport(npu, flags.stats);
  return kExitDone;
}

int RunText(const EvalFlags& flags, Engines& engines, const std::string& text) {
  Progress progress("eval");
  const auto report = Evaluate(engines.engine, engines.exact ? &*engines.exact : nullptr, text, flags.options,
                               [&](size_t done_tokens, size_t total_tokens) {
                                 progress.Show(done_tokens, total_tokens);
                                 return !Interrupted();
                               });
  progress.Clear();
  if (!report && report.error().code == Code::kCancelled) {
    return ExitInterrupted("the end of the text was not reached, nothing is printed");
  }
  if (!report) return FailWith(report.error());
  const RunIdentity identity = engines.engine.identity();
  return Print(flags, flags.json ? EvalJson(*report, identity) : EvalText(*report, identity), report->npu);
}

int RunItems(const EvalFlags& flags, Engines& engines, const TaskOptions& options) {
  Progress progress("eval", "items", "items/s");
  const auto report = RunTask(engines.engine, engines.exact ? &*engines.exact : nullptr, options,
                              [&](double done_items, uint64_t n_items) {
                                progress.ShowFrom(done_items, static_cast<double>(n_items));
                                return !Interrupted();
                              });
  progress.Clear();
  if (!report && report.error().code == Code::kCancelled) {
    return ExitInterrupted("no item was done, nothing is printed");
  }
  if (!report) return FailWith(report.error());
  const RunIdentity identity = engines.engine.identity();
  const int code =
      Print(flags, flags.json ? TaskJson(*report, identity, options) : TaskText(*report, identity), report->npu);
  if (code != kExitDone || report->n_items == report->n_wanted) return code;
  return ExitInterrupted(fmt::format("{} of {} items are done{}", report->n_items, report->n_wanted,
                                     options.log_path.empty() ? "" : "; the same command goes on after them"));
}

}  // namespace

int RunEval(const std::vector<std::string>& args) {
  CLI::App app(
      "Reads a text and tells how well the model predicts it, or runs a task with known answers, and tells how an NPU "
      "changes that.",
      "eval");
  app.footer(TaskHelp());
  EvalFlags flags;
  flags.AddTo(app);
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  auto options = flags.engine.Options();
  if (!options) return UsageError("eval: " + options.error().message);
  if (const Status filled = flags.npu.Fill(*options); !filled) return UsageError("eval: " + filled.error().message);
  if (const Status good = flags.npu.CheckNoTrace(); !good) return UsageError("eval: " + good.error().message);
  if (const Status good = flags.Check(); !good) return UsageError("eval: " + good.error().message);
  if (const Status apart = CheckApart({flags.task.log_path}, {flags.engine.model(), flags.file}); !apart) {
    return UsageError("eval: " + apart.error().message);
  }
  std::string text;
  if (!flags.file.empty()) {
    auto read = ReadAll(flags.file, kMaxTextBytes);
    if (!read) return FailWith(read.error());
    text = std::move(*read);
  }
  auto engines = OpenEngines(flags, *options);
  if (!engines) return FailWith(engines.error());
  flags.npu.NoteWhatIsOtherwise(engines->engine.plan_lengths());
  CatchInterrupts(Keeps::kOutput);
  if (flags.task.task.empty()) return RunText(flags, *engines, text);
  TaskOptions task = flags.task;
  task.data = std::move(text);
  task.data_name = flags.file == "-" ? "stdin" : flags.file;
  return RunItems(flags, *engines, task);
}

}  // namespace npumoe
