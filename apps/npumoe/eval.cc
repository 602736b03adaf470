// SPDX-License-Identifier: Apache-2.0
// `npumoe eval`: perplexity of texts, and with an NPU the agreement with the exact run on the CPU.
#include "npumoe/eval.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/npu_flags.h"
#include "apps/npumoe/npu_report.h"
#include "apps/npumoe/progress.h"
#include "apps/npumoe/text.h"

namespace npumoe {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

struct EvalFlags {
  EngineFlags engine;
  NpuFlags npu;
  std::string file;
  EvalOptions options;
  bool json = false, stats = false;

  void AddTo(CLI::App& app) {
    engine.AddTo(app);
    npu.AddTo(app);
    const std::string group = "Evaluation";
    app.add_option("-f,--file", file, "text to read; - reads stdin")->take_last()->required()->group(group);
    app.add_option("--max-tokens", options.max_tokens, "read no more than so many tokens; 0 = all")
        ->take_last()
        ->group(group);
    app.add_option("--window", options.window_tokens, "tokens read together; 0 = the context, at most 2048")
        ->take_last()
        ->group(group);
    app.add_flag("--stats", stats, "print what the NPU did, layer by layer")->group(group);
    app.add_flag("--json", json, "print one JSON object")->group(group);
  }
};

std::string ToText(const EvalReport& report) {
  std::string text = fmt::format("{:<16} {}\n{:<16} {:.4f} (nll {:.5f} +- {:.5f})\n", "tokens", report.n_tokens,
                                 "perplexity", report.perplexity, report.mean_nll, report.nll_standard_error);
  if (!report.agreement) return text;
  const Agreement& agreement = *report.agreement;
  return text +
         fmt::format(
             "{:<16} perplexity {:.4f}, same likeliest token {:.3f} %, KL mean {:.3e}, median {:.3e}, p99 {:.3e}\n",
             "exact CPU run", agreement.other_perplexity, 100 * agreement.top1, agreement.mean_kl, agreement.median_kl,
             agreement.p99_kl);
}

std::string ToJson(const EvalReport& report) {
  nlohmann::ordered_json json{{"n_tokens", report.n_tokens},
                              {"perplexity", report.perplexity},
                              {"mean_nll", report.mean_nll},
                              {"nll_standard_error", report.nll_standard_error}};
  if (report.agreement) {
    json["agreement"] = {{"exact_perplexity", report.agreement->other_perplexity},
                         {"top1", report.agreement->top1},
                         {"mean_kl", report.agreement->mean_kl},
                         {"median_kl", report.agreement->median_kl},
                         {"p99_kl", report.agreement->p99_kl}};
  }
  if (!report.npu.npu.empty()) json["npu"] = NpuReportJson(report.npu);
  return json.dump(2) + "\n";
}

int Run(const EvalFlags& flags, const EngineOptions& options, const std::string& text) {
  auto engine = OpenEngine(flags.engine.model(), options);
  if (!engine) return FailWith(engine.error());
  std::optional<Engine> exact;
  if (flags.npu.wanted()) {
    EngineOptions on_cpu = options;
    on_cpu.npu = {};
    if (on_cpu.activation_bits == 0) on_cpu.activation_bits = 16;  // what the CPU does beside an NPU
    auto opened = OpenEngine(flags.engine.model(), on_cpu);
    if (!opened) return FailWith(opened.error());
    exact.emplace(std::move(*opened));
  }
  Progress progress("eval");
  const auto report =
      Evaluate(*engine, exact ? &*exact : nullptr, text, flags.options, [&](size_t done_tokens, size_t total_tokens) {
        progress.Show(done_tokens, total_tokens);
        return !Interrupted();
      });
  progress.Clear();
  if (!report && report.error().code == Code::kCancelled) {
    Note("eval: interrupted before the end of the text, nothing is printed");
    return kExitInterrupted;
  }
  if (!report) return FailWith(report.error());
  const Status written = WriteOut(flags.json ? ToJson(*report) : ToText(*report));
  if (!written) return FailWith(written.error());
  if (flags.npu.wanted() && !flags.json) PrintNpuReport(report->npu, flags.stats);
  return kExitDone;
}

}  // namespace

int RunEval(const std::vector<std::string>& args) {
  CLI::App app("Reads a text and tells how well the model predicts it, and how an NPU changes that.", "eval");
  EvalFlags flags;
  flags.AddTo(app);
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  auto options = flags.engine.Options();
  if (!options) return UsageError("eval: " + options.error().message);
  if (const Status filled = flags.npu.Fill(*options); !filled) return UsageError("eval: " + filled.error().message);
  if (!flags.npu.trace_path().empty()) return UsageError("eval: --trace: only 'npumoe run' writes one");
  CatchInterrupts();
  const auto text = ReadAll(flags.file, kMaxTextBytes);
  if (!text) return FailWith(text.error());
  return Run(flags, *options, *text);
}

}  // namespace npumoe
