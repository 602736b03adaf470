// SPDX-License-Identifier: Apache-2.0
// `npumoe cache`: the compiled programs that are kept on disk.
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/text.h"
#include "npumoe/programs.h"

namespace npumoe {
namespace {

std::string Time(int64_t seconds) {
  return fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(static_cast<std::time_t>(seconds)));
}

std::string ProgramTable(const std::vector<CachedProgram>& programs, const std::string& folder) {
  std::string text;
  uint64_t bytes = 0;
  for (const CachedProgram& program : programs) {
    bytes += program.size_bytes;
    text += fmt::format("{}  {}  {:>10}  {}{}{}\n", OneLine(program.key), Time(program.used_at), FormatBytes(program.size_bytes),
                        OneLine(program.what), program.in_use ? ", in use" : "",
                        program.failure.empty() ? "" : ", failed: " + OneLine(program.failure));
  }
  return text + fmt::format("{} programs, {} in {}\n", programs.size(), FormatBytes(bytes), OneLine(folder));
}

std::string ProgramsJson(const std::vector<CachedProgram>& programs, const std::string& folder) {
  nlohmann::ordered_json json = {{"folder", ReplaceInvalidUtf8(folder)}, {"programs", nlohmann::ordered_json::array()}};
  for (const CachedProgram& program : programs) {
    json["programs"].push_back({{"key", ReplaceInvalidUtf8(program.key)},
                                {"what", ReplaceInvalidUtf8(program.what)},
                                {"size_bytes", program.size_bytes},
                                {"used_at", program.used_at},
                                {"in_use", program.in_use},
                                {"failure", ReplaceInvalidUtf8(program.failure)}});
  }
  return json.dump(2) + "\n";
}

int Finish(const Status& status) { return status.ok() ? kExitDone : FailWith(status.error()); }

}  // namespace

int RunCache(const std::vector<std::string>& args) {
  CLI::App app("Lists or removes the compiled programs that are kept on disk for Core ML.", "cache");
  std::string folder;
  app.require_subcommand(1);
  BindEnvironment(app.add_option("--cache", folder, "folder of caches [" + DefaultCacheFolder() + "]"), "CACHE");
  CLI::App* const list = app.add_subcommand("ls", "least recently used first");
  bool as_json = false;
  list->add_flag("--json", as_json, "JSON");
  CLI::App* const remove = app.add_subcommand("rm", "removes programs that no process uses");
  std::vector<std::string> keys;
  bool all = false, failed = false;
  remove->add_option("key", keys, "keys, or their first digits");
  remove->add_flag("--all", all, "every program");
  remove->add_flag("--failed", failed, "verdicts of programs that could not be compiled or run");
  for (CLI::App* const command : {list, remove}) command->fallthrough();
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  if (folder.empty()) folder = DefaultCacheFolder();
  if (folder.empty()) return UsageError("cache: --cache: no home folder, wanted a folder");

  if (list->parsed()) {
    const auto programs = ListPrograms(folder);
    return Finish(WriteOut(as_json ? ProgramsJson(programs, folder) : ProgramTable(programs, folder)));
  }
  if (all && (failed || !keys.empty())) return UsageError("cache rm: --all: not with keys or --failed");
  if (keys.empty() && !all && !failed) return UsageError("cache rm: wants keys, --failed or --all");
  const auto programs = ListPrograms(folder);
  for (const std::string& key : keys) {
    const auto n = std::ranges::count_if(programs, [&](const CachedProgram& p) { return p.key.starts_with(key); });
    if (n == 1) continue;
    return FailWith(
        {Code::kNotFound, fmt::format("cache rm: '{}': {} programs begin so, wanted one", OneLine(key), n)});
  }
  const auto removed = RemovePrograms(folder, [&](const CachedProgram& program) {
    return all || (failed && !program.failure.empty()) ||
           std::ranges::any_of(keys, [&](const std::string& key) { return program.key.starts_with(key); });
  });
  if (!removed) return FailWith(removed.error());
  return Finish(WriteOut(
      fmt::format("{} programs removed, {}\n", removed->n_programs, FormatBytes(removed->size_bytes))));
}

}  // namespace npumoe
