// SPDX-License-Identifier: Apache-2.0
// `npumoe report`: simulated figures as one web page.
#include "npumoe/report.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/progress.h"
#include "apps/npumoe/routing_flags.h"
#include "apps/npumoe/text.h"
#include "npumoe/files.h"
#include "npumoe/plan.h"

namespace npumoe {
namespace {

// Those of the paper.
constexpr const char* kModels[] = {"qwen3-30b-a3b", "phi-3.5-moe", "phi-tiny-moe"};

std::string PublishedJson() {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const PublishedFigure& f : PublishedFigures()) {
    json.push_back({{"key", f.key},
                    {"what", f.what},
                    {"low", f.low},
                    {"high", f.high},
                    {"unit", f.unit},
                    {"setting", f.setting},
                    {"source", f.source},
                    {"confidence", f.confidence}});
  }
  return json.dump(2) + "\n";
}

struct ReportFlags {
  ReportOptions options;
  RoutingFlags routing;
  std::string output = "report.html";
  int32_t n_threads = -1;
  bool published = false;
  const CLI::Option* published_option = nullptr;

  void AddTo(CLI::App& app) {
    SimulateOptions& o = options.simulate;
    o.expert_weights = "int8";  // the paper stored 8 bits
    app.add_option("-m,--model,model", options.models,
                   "as 'npumoe simulate' takes them [qwen3-30b-a3b,phi-3.5-moe,phi-tiny-moe, the paper's]")
        ->delimiter(',');
    app.add_option("--npu", o.npu, "machine ('npumoe doctor' lists them) [m2-max]");
    app.add_option("-p,--prompt", o.prompt_tokens, "prompt tokens [4096]")->check(WholeIn(1, kMaxContextTokens));
    app.add_option("--chunk,--npu-chunk", o.chunk_tokens,
                   "prompt tokens of one attention dispatch; some figures have 256, 512 and 1024 besides [256]")
        ->check(WholeIn(1, kMaxChunkTokens));
    app.add_option("--moe-batch", o.moe_batch_tokens, "tokens whose experts run together in 'ours' [4096]")
        ->check(WholeIn(1, kMaxContextTokens));
    app.add_option("--order", o.order, "of 'ours', " + OneOf(Orders()) + " (wavefront: two halves in flight) [auto]");
    routing.AddTo(app, o);
    app.add_option("--expert-weights", o.expert_weights, "fp16, int8, lut8, lut6 or lut4 [int8, as the paper]");
    app.add_option("--attention-weights", o.attention_weights, "likewise [fp16]");
    app.add_option("--tiers", o.n_tiers, "capacities of a layer in the paper's plans [3]")->check(WholeIn(1, 64));
    app.add_option("--seeds", o.n_seeds, "prompts, each with its own routing [5]")->check(WholeIn(1, 10000));
    app.add_option("-s,--seed", o.seed, "of the first [1]")->check(WholeIn(0, UINT64_MAX));
    app.add_option("-t,--threads", n_threads, "simulations at once; -1 = all cores")->check(WholeIn(-1, kMaxThreads));
    app.add_option("-o,--output", output, "file to write, - for stdout [report.html]")->take_last();
    published_option =
        app.add_flag("--published", published, "print the paper's figures with their sources as JSON, and no page");
  }
};

// Models that are files, and the statistics.
std::vector<std::string> InputsOf(const ReportFlags& flags) {
  std::vector<std::string> inputs{flags.routing.path()};
  for (const std::string& model : flags.options.models) {
    std::error_code ignored;
    const bool folder = std::filesystem::is_directory(model, ignored);
    inputs.push_back(folder ? model + "/config.json" : model);
  }
  return inputs;
}

}  // namespace

int RunSimulationReport(const std::vector<std::string>& args) {
  CLI::App app(
      "Draws times, energies, plans and their maps as one web page that loads nothing; all of it is simulated.",
      "report");
  ReportFlags flags;
  flags.AddTo(app);
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  if (const Status good = flags.routing.Check(); !good) return UsageError("report: " + good.error().message);
  if (flags.published) {
    for (const CLI::Option* option : app.get_options()) {
      if (option == flags.published_option) continue;
      if (const Status good = Refuse({option}, "not with --published, which prints what is known, as JSON"); !good) {
        return UsageError("report: " + good.error().message);
      }
    }
    const Status written = WriteOut(PublishedJson());
    return written ? kExitDone : FailWith(written.error());
  }
  flags.options.simulate.npu = WithoutSim(flags.options.simulate.npu);
  const uint32_t threads = ThreadCount(flags.n_threads);
  flags.options.n_threads = threads > 0 ? threads : std::max(1u, std::thread::hardware_concurrency());
  if (flags.options.models.empty()) flags.options.models.assign(std::begin(kModels), std::end(kModels));
  const bool to_stdout = flags.output == "-";
  if (const Status apart = CheckApart({flags.output}, InputsOf(flags)); !apart) {
    return UsageError("report: " + apart.error().message);
  }
  if (const Status can = CheckOutputFile(to_stdout ? "" : flags.output); !can) return FailWith(can.error());
  if (const Status read = flags.routing.Read(flags.options.simulate); !read) return FailWith(read.error());

  Progress progress("report", "prompts", "prompts/s");
  const auto html = MakeReport(flags.options, [&](size_t done, size_t total) {
    progress.Show(done, total);
    return true;  // Ctrl-C ends the program: there is nothing to keep
  });
  progress.Clear();
  if (!html) {
    const Error& error = html.error();
    const bool usage = error.code == Code::kInvalidArgument || error.code == Code::kNotFound;
    return usage ? UsageError("report: " + error.message) : FailWith(error);
  }
  if (!to_stdout) {
    if (const Status saved = WriteOutputFile(flags.output, *html); !saved) return FailWith(saved.error());
  }
  const Status written = WriteOut(to_stdout ? *html
                                            : fmt::format("{}: {}, all of it simulated on {}\n", OneLine(flags.output),
                                                          FormatBytes(html->size()), flags.options.simulate.npu));
  return written ? kExitDone : FailWith(written.error());
}

}  // namespace npumoe
