// SPDX-License-Identifier: Apache-2.0
// `npumoe doctor`: what this machine and this build have.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/machine.h"
#include "apps/npumoe/text.h"
#include "npumoe/engine.h"
#include "npumoe/npu.h"

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

}  // namespace

int RunDoctor(const std::vector<std::string>& args) {
  CLI::App app("Shows what this machine and this build have.", "doctor");
  std::string name;
  bool as_json = false;
  app.add_option("--npu", name, "all numbers of this simulated NPU");
  app.add_flag("--json", as_json, "JSON");
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;

  if (name.starts_with("sim:")) name.erase(0, 4);
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
                 {"memory_bytes", MemoryBytes()},
                 {"page_bytes", PageBytes()},
                 {"build", Build(build)},
                 {"npu_backends", backends},
                 {"simulated_npus", names}};
    if (!name.empty()) json["npu"] = ToJson(*shown);
    written = WriteOut(json.dump(2) + "\n");
  } else {
    std::string text = NamedLine(12, "system", OsName()) + NamedLine(12, "cpu", fmt::format("{}, {} cores", CpuName(), Cores())) +
                       NamedLine(12, "simd", build.simd_target) + NamedLine(12, "memory", FormatBytes(MemoryBytes())) +
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
