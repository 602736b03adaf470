// SPDX-License-Identifier: Apache-2.0
// `npumoe calibrate`: reads texts with a model and keeps how it routes them.
#include "npumoe/calibrate.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/generate.h"
#include "apps/npumoe/progress.h"
#include "apps/npumoe/text.h"
#include "npumoe/files.h"
#include "npumoe/plan.h"

namespace npumoe {
namespace {

// Of all texts together. They are held in memory, four bytes a token beside them; at a thousand tokens a second this
// much takes a day.
constexpr size_t kMaxTextsBytes = size_t{256} << 20;

struct CalibrateFlags {
  EngineFlags engine;
  std::vector<std::string> files;
  std::string chunks = "128,256,512,1024,2048,4096", output, svg;
  uint64_t max_tokens = 0;
  bool json = false;

  void AddTo(CLI::App& app) {
    engine.AddTo(app);
    const std::string text = "Text", out = "Output";
    app.add_option(
           "-f,--file", files,
           "texts to read, a domain each (the file's name is its name); - reads stdin; give several, or -f again")
        ->required()
        ->group(text);
    app.add_option("--chunk", chunks, "chunk lengths whose loads are counted: numbers and ranges such as 128-4096*2")
        ->take_last()
        ->capture_default_str()
        ->group(text);
    app.add_option("--max-tokens", max_tokens, "read no more in all, shared evenly among the texts; 0 = everything")
        ->take_last()
        ->check(WholeIn(0, uint64_t{1} << 40))
        ->group(text);
    app.add_option("-o,--output", output,
                   "file for the statistics; without it <model>.npumoe/routing_stats.json, where 'plan' and 'run' look")
        ->take_last()
        ->group(out);
    app.add_option("--svg", svg, "also draw the heat map of layers and experts into this file")
        ->take_last()
        ->group(out);
    app.add_flag("--json", json, "print one JSON object instead of the table")->group(out);
  }
};

Result<std::vector<CalibrationText>> ReadTexts(const std::vector<std::string>& files) {
  std::vector<CalibrationText> texts;
  size_t left = kMaxTextsBytes;
  for (const std::string& file : files) {
    auto text = ReadAll(file, left);
    if (!text && text.error().code == Code::kInvalidArgument) {
      return Error{Code::kInvalidArgument, fmt::format("'{}': the texts are more than {} together, the limit", file,
                                                       FormatBytes(kMaxTextsBytes))};
    }
    if (!text) return text.error();
    left -= text->size();
    std::string name = file == "-" ? "stdin" : std::filesystem::path(file).filename().string();
    const auto same = [&](const CalibrationText& other) { return other.name == name; };
    if (std::any_of(texts.begin(), texts.end(), same)) name = file;  // names of files in two folders may be equal
    texts.push_back({std::move(name), std::move(*text)});
  }
  return texts;
}

std::string Table(const CalibrationReport& report) {
  std::string text = fmt::format("{} tokens of {} text{}, chunk lengths {}\n\n", report.n_tokens, report.sources.size(),
                                 report.sources.size() == 1 ? "" : "s", fmt::join(report.chunk_tokens, ", "));
  text += fmt::format("{:>5} {:>9} {:>14} {:>7} {:>8} {:>9} {:>7}  {}\n", "layer", "hottest", "effective", "unseen",
                      "halves", "(chance)", "texts", "largest activation");
  for (const LayerSkew& layer : report.layers) {
    text += fmt::format("{:>5} {:>7.2f} x {:>14} {:>7} {:>8.3f} {:>9} {:>7}  {:.4g} ({})\n", layer.layer,
                        layer.hottest_over_mean, fmt::format("{:.1f} of {}", layer.effective_experts, report.n_experts),
                        layer.unseen, layer.half_distance, fmt::format("({:.3f})", layer.chance_distance),
                        report.sources.size() > 1 ? fmt::format("{:.3f}", layer.source_distance) : "-",
                        layer.largest_activation, layer.largest_stage);
  }
  return text +
         "\nhottest: tokens of the layer's most chosen expert over the mean. effective: how many equally popular "
         "experts\n"
         "would be as even. halves, texts: part of the choices that would have to change for first and second halves\n"
         "(for the two least alike texts) to agree; (chance): what halves of one popularity would differ by "
         "anyway.\n\n";
}

std::string ToJson(const CalibrationReport& report, const std::string& output, const std::string& svg) {
  const auto safe = [](const std::string& text) { return ReplaceInvalidUtf8(text); };
  nlohmann::ordered_json json{{"model", safe(report.model_name)},   {"output", safe(output)},
                              {"complete", report.complete},        {"n_tokens", report.n_tokens},
                              {"n_experts", report.n_experts},      {"top_k", report.top_k},
                              {"chunk_tokens", report.chunk_tokens}};
  if (!svg.empty()) json["svg"] = safe(svg);
  json["sources"] = nlohmann::ordered_json::array();
  for (const std::string& source : report.sources) json["sources"].push_back(safe(source));
  json["layers"] = nlohmann::ordered_json::array();
  for (const LayerSkew& layer : report.layers) {
    nlohmann::ordered_json row{{"layer", layer.layer},
                               {"hottest_over_mean", layer.hottest_over_mean},
                               {"effective_experts", layer.effective_experts},
                               {"unseen", layer.unseen},
                               {"half_distance", layer.half_distance},
                               {"chance_distance", layer.chance_distance},
                               {"source_distance", layer.source_distance},
                               {"largest_activation", layer.largest_activation},
                               {"largest_stage", layer.largest_stage}};
    json["layers"].push_back(std::move(row));
  }
  json["warnings"] = nlohmann::ordered_json::array();
  for (const std::string& warning : report.warnings) json["warnings"].push_back(safe(warning));
  return json.dump(2) + "\n";
}

// Writes the files, then says what was found. An interrupted run does the same with what it has.
int Finish(const CalibrateFlags& flags, const CalibrationReport& report, const std::string& output) {
  if (const Status saved = WriteOutputFile(output, report.json); !saved) return FailWith(saved.error());
  if (!flags.svg.empty()) {
    const auto svg = CalibrationSvg(report.json, output);
    if (!svg) return FailWith(svg.error());
    if (const Status saved = WriteOutputFile(flags.svg, *svg); !saved) return FailWith(saved.error());
  }
  const std::string text =
      flags.json ? ToJson(report, output, flags.svg)
                 : Table(report) + fmt::format("{}: {}\n", OneLine(output), FormatBytes(report.json.size())) +
                       (flags.svg.empty() ? "" : fmt::format("{}: the heat map\n", OneLine(flags.svg)));
  if (const Status written = WriteOut(text); !written) return FailWith(written.error());
  for (const std::string& warning : report.warnings) Note("warning: " + warning);
  return report.complete ? kExitDone : ExitInterrupted("what was gathered is written");
}

}  // namespace

int RunCalibrate(const std::vector<std::string>& args) {
  CLI::App app(
      "Reads texts with a MoE model on the CPU and keeps how it routes them: what a plan for an NPU stands on.\n"
      "A text longer than the window (4,096 tokens, or the longest chunk length; never above -c) is read in pieces.",
      "calibrate");
  CalibrateFlags flags;
  flags.AddTo(app);
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  const auto engine_options = flags.engine.Options();
  if (!engine_options) return UsageError("calibrate: " + engine_options.error().message);
  CalibrateOptions options;
  auto lengths = ParseList(flags.chunks, kMaxContextTokens, "--chunk");
  if (!lengths) return UsageError("calibrate: " + lengths.error().message);
  if (std::ranges::find(*lengths, 0u) != lengths->end()) return UsageError("calibrate: --chunk: lengths start at 1");
  if (lengths->size() > kMaxChunkLengths) {
    return UsageError(
        fmt::format("calibrate: --chunk: wants at most {} lengths, got {}", kMaxChunkLengths, lengths->size()));
  }
  if (flags.files.size() > kMaxCalibrationTexts) {
    return UsageError(
        fmt::format("calibrate: --file: wants at most {} texts, got {}", kMaxCalibrationTexts, flags.files.size()));
  }
  options.chunk_tokens = std::move(*lengths);
  options.max_tokens = flags.max_tokens;
  const std::string output =
      flags.output.empty() ? SidecarPath(flags.engine.model(), "routing_stats.json") : flags.output;
  if (output == "-" || flags.svg == "-") return UsageError("calibrate: -o and --svg: want files: stdout has the report");
  std::vector<std::string> inputs = flags.files;
  inputs.push_back(flags.engine.model());
  if (const Status apart = CheckApart({output, flags.svg}, inputs); !apart) {
    return UsageError("calibrate: " + apart.error().message);
  }
  // Asked before hours of work.
  for (const std::string& path : {output, flags.svg}) {
    if (const Status writable = CheckOutputFile(path); !writable) return FailWith(writable.error());
  }
  const auto texts = ReadTexts(flags.files);
  if (!texts) return FailWith(texts.error());
  auto engine = OpenEngine(flags.engine.model(), *engine_options);
  if (!engine) return FailWith(engine.error());
  PrintWarnings(engine->info());
  CatchInterrupts(Keeps::kWork);
  Progress progress("calibrate");
  const auto report = Calibrate(*engine, *texts, options, [&](uint64_t done_tokens, uint64_t total_tokens) {
    progress.Show(done_tokens, total_tokens);
    return !Interrupted();
  });
  progress.Clear();
  if (!report && report.error().code == Code::kCancelled) {
    return ExitInterrupted("nothing was gathered yet, nothing is written");
  }
  if (!report) return FailWith(report.error());
  return Finish(flags, *report, output);
}

}  // namespace npumoe
