// SPDX-License-Identifier: Apache-2.0
// `npumoe doctor`: what this machine and this build have.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/machine.h"
#include "apps/npumoe/npu_flags.h"
#include "apps/npumoe/text.h"
#include "npumoe/engine.h"
#include "npumoe/npu.h"
#include "npumoe/programs.h"
#include "npumoe/self_test.h"

namespace npumoe {
namespace {

using Json = nlohmann::ordered_json;

std::string Build(const BuildInfo& build) {
  return fmt::format("npumoe {} ({}, {}{})", build.version, build.commit, build.compiler,
                     build.is_debug ? ", debug" : "");
}

// Every number of an NPU with where it comes from.
std::string Table(const NpuDescription& npu) {
  std::string text = fmt::format("\n{}: {}, simulated with\n", npu.name, npu.title);
  for (const NpuProperty& p : npu.properties) {
    text += fmt::format("  {:<25} {:>12.10g} {:<10} {}\n", p.name, p.value, p.unit, p.source);
  }
  return text;
}

Json ToJson(const NpuDescription& npu) {
  Json json = {{"name", npu.name}, {"title", npu.title}, {"simulated", true}, {"properties", Json::array()}};
  for (const NpuProperty& p : npu.properties) {
    json["properties"].push_back({{"name", p.name},
                                  {"value", p.value},
                                  {"unit", p.unit},
                                  {"source", p.source},
                                  {"assumed", p.source.starts_with("assumed")}});
  }
  return json;
}

// "31 of 33 ops on the NPU (not: softmax on the CPU, 2 x)".
std::string Placement(const std::vector<OpPlacement>& placements) {
  size_t n_placed = 0, n_npu = 0;
  std::map<std::string, size_t> elsewhere;
  for (const OpPlacement& placed : placements) {
    if (placed.preferred.empty()) continue;  // a constant
    ++n_placed;
    if (placed.preferred == "NPU") {
      ++n_npu;
    } else {
      ++elsewhere[fmt::format("{} on the {}", placed.op, placed.preferred)];
    }
  }
  if (n_placed == 0) return "placement n/a (source missing)";
  std::string text = fmt::format("{} of {} ops on the NPU", n_npu, n_placed);
  std::vector<std::string> names;
  for (const auto& [op, times] : elsewhere) names.push_back(times > 1 ? fmt::format("{}, {} x", op, times) : op);
  return names.empty() ? text : fmt::format("{} (not: {})", text, fmt::join(names, "; "));
}

Json PlacementJson(const std::vector<OpPlacement>& placements) {
  Json json = Json::array();
  for (const OpPlacement& placed : placements) {
    json.push_back({{"op", placed.op},
                    {"output", placed.output},
                    {"preferred", placed.preferred},
                    {"npu_supported", placed.npu_supported},
                    {"cost", placed.cost}});
  }
  return json;
}

std::string ProbeTable(const SelfTestReport& report) {
  std::string text = fmt::format(
      "self-test of {} ({}), times {}\n", report.device, report.title,
      report.simulated ? fmt::format("simulated on {}: nothing was learnt about a real machine", report.npu)
                       : fmt::format("measured on {}, {}", report.chip, report.os));
  for (const Probe& p : report.probes) {
    text += fmt::format("  {:<46}", OneLine(p.name));
    if (!p.failure.empty()) {
      text += fmt::format(" failed: {}\n", OneLine(p.failure));
      continue;
    }
    text += fmt::format(" {:9.3f} ms {:7.2f} TFLOP/s {:7.1f} GB/s of weights", p.seconds * 1e3, p.flops / p.seconds * 1e-12,
                        p.weight_bytes / p.seconds * 1e-9);
    if (p.compared) text += fmt::format(", rel. RMS {:.1e} {}", p.relative_rms, p.right ? "right" : "WRONG");
    text += ", " + Placement(p.placements) + "\n";
  }
  for (const MeasuredNumber& number : report.numbers) {
    text += fmt::format("  {:<25} {:>12.4g} {:<8} (table {:.4g})\n", number.name, number.value, number.unit, number.table);
  }
  if (!report.spec_path.empty()) text += fmt::format("written for the planner: {}\n", OneLine(report.spec_path));
  return text + (report.passed ? "passed" : "FAILED") +
         (report.simulated ? fmt::format(", simulated on {}\n", report.npu) : fmt::format(", measured on {}\n", report.chip));
}

Json ProbesJson(const SelfTestReport& report) {
  Json json = {{"device", report.device}, {"npu", report.npu},     {"chip", report.chip},
               {"os", report.os},         {"simulated", report.simulated}, {"passed", report.passed},
               {"spec_path", ReplaceInvalidUtf8(report.spec_path)}, {"probes", Json::array()}, {"numbers", Json::object()}};
  for (const Probe& p : report.probes) {
    json["probes"].push_back({{"name", p.name},
                              {"failure", ReplaceInvalidUtf8(p.failure)},
                              {"seconds", p.seconds},
                              {"n_runs", p.n_runs},
                              {"flops", p.flops},
                              {"weight_bytes", p.weight_bytes},
                              {"io_bytes", p.io_bytes},
                              {"relative_rms", p.compared ? Json(p.relative_rms) : Json(nullptr)},
                              {"right", p.compared ? Json(p.right) : Json(nullptr)},
                              {"placements", PlacementJson(p.placements)}});
  }
  for (const MeasuredNumber& number : report.numbers) {
    json["numbers"][number.name] = {{"value", number.value}, {"unit", number.unit}, {"table", number.table}};
  }
  return json;
}

int SelfTest(const std::string& device, const std::string& cache, bool as_json) {
  EngineOptions options;
  options.npu.device = device;
  options.npu.cache_folder = cache;
  if (device.empty()) {
    const auto backends = NpuBackends();
    if (backends.empty()) {
      return FailWith({Code::kUnsupported,
                       "doctor: --self-test: no NPU on this system, wanted --npu sim:NAME to see a simulated one"});
    }
    options.npu.device = backends.front();
  }
  if (const std::string self = ProgramPath(); !self.empty()) options.npu.compiler = {self, kCompilePackage};
  CatchInterrupts(Keeps::kWork);
  const auto report = RunSelfTest(options, [](const std::string& name) {
    Note(fmt::format("doctor: {}", name));
    return !Interrupted();
  });
  if (Interrupted()) return ExitInterrupted();
  if (!report) return FailWith(report.error());
  const Status written = WriteOut(as_json ? ProbesJson(*report).dump(2) + "\n" : ProbeTable(*report));
  if (!written) return FailWith(written.error());
  return report->passed ? kExitDone : kExitFailed;
}

}  // namespace

int RunDoctor(const std::vector<std::string>& args) {
  CLI::App app("Shows what this machine and this build have.", "doctor");
  std::string name;
  std::string cache;
  bool as_json = false, self_test = false;
  app.add_option("--npu", name, "all numbers of this simulated NPU; with --self-test the device to test");
  app.add_flag("--self-test", self_test,
               "runs probes on the NPU: are the results right, where do ops run, how fast is it; what is measured on a "
               "real one is kept for the planner");
  auto* const cache_option =
      app.add_option("--cache", cache, "with --self-test: folder of caches [" + DefaultCacheFolder() + "]");
  BindEnvironment(cache_option, "CACHE");
  app.add_flag("--json", as_json, "JSON");
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;

  if (self_test) {
    const auto devices = NpuDevices();
    if (!name.empty() && std::ranges::find(devices, name) == devices.end()) {
      return UsageError(fmt::format("doctor: --npu: with --self-test it wants one of {}, got '{}'",
                                    fmt::join(devices, ", "), OneLine(name)));
    }
    return SelfTest(name, cache, as_json);
  }
  if (const Status good = Refuse({cache_option}, "wants --self-test"); !good) {
    return UsageError("doctor: " + good.error().message);
  }
  name = WithoutSim(name);
  const std::vector<NpuDescription> npus = DescribeNpus();
  std::vector<std::string> names, titles;
  for (const NpuDescription& npu : npus) {
    names.push_back(npu.name);
    titles.push_back(fmt::format("sim:{:<10} {}", npu.name, npu.title));
  }
  const auto shown = std::ranges::find(npus, name, &NpuDescription::name);
  if (!name.empty() && shown == npus.end()) {
    return UsageError(fmt::format("doctor: --npu: '{}' is unknown, wanted one of {}", name, fmt::join(names, ", ")));
  }
  const BuildInfo build = GetBuildInfo();
  const std::vector<std::string> backends = NpuBackends();
  Status written = Ok{};
  if (as_json) {
    Json json = {{"os", ReplaceInvalidUtf8(OsName())},
                 {"cpu", ReplaceInvalidUtf8(CpuName())},
                 {"cores", Cores()},
                 {"simd", build.simd_target},
                 {"blas", build.blas},
                 {"memory_bytes", MemoryBytes()},
                 {"page_bytes", PageBytes()},
                 {"build", Build(build)},
                 {"npu_backends", backends},
                 {"simulated_npus", names}};
    if (!name.empty()) json["npu"] = ToJson(*shown);
    written = WriteOut(json.dump(2) + "\n");
  } else {
    std::string text = NamedLine(12, "system", OsName()) + NamedLine(12, "cpu", fmt::format("{}, {} cores", CpuName(), Cores())) +
                       NamedLine(12, "simd", SimdAndBlas(build)) + NamedLine(12, "memory", FormatBytes(MemoryBytes())) +
                       NamedLine(12, "page size", FormatBytes(PageBytes())) + NamedLine(12, "build", Build(build)) +
                       NamedLine(12, "real NPUs", backends.empty() ? "none: Core ML is not in this build"
                                                          : fmt::format("{}", fmt::join(backends, ", ")));
    for (size_t i = 0; i < titles.size(); ++i) text += NamedLine(12, i == 0 ? "simulated" : "", titles[i]);
    if (!name.empty()) text += Table(*shown);
    written = WriteOut(text);
  }
  return written.ok() ? kExitDone : FailWith(written.error());
}

}  // namespace npumoe
