// SPDX-License-Identifier: Apache-2.0
// All programs of a plan, made ahead of the first prompt.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "engine/build_info.h"
#include "engine/npu_programs.h"
#include "engine/npu_setup.h"
#include "engine/options.h"
#include "graph/hash.h"
#include "graph/mlpackage/folder.h"
#include "graph/mlpackage/mlpackage.h"
#include "npu/coreml_npu.h"
#include "npu/program_cache.h"
#include "npumoe/programs.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;

// Keys of what a package says about itself to those who open it.
constexpr char kMadeFrom[] = "npumoe.made_from", kProgram[] = "npumoe.program", kNpu[] = "npumoe.npu",
               kWeightBytes[] = "npumoe.weight_bytes";

struct Item {
  uint32_t layer;
  size_t group;  // kAttentionProgram for the attention stage
};

std::vector<Item> ItemsOf(const Plan& plan) {
  std::vector<Item> items;
  for (uint32_t layer = 0; layer < plan.layers.size(); ++layer) {
    if (plan.layers[layer].attention == AttentionPlace::kNpu) items.push_back({layer, kAttentionProgram});
    for (size_t group = 0; group < plan.layers[layer].groups.size(); ++group) items.push_back({layer, group});
  }
  return items;
}

class Compiler {
 public:
  Compiler(const Model& model, const NpuSetup& setup, const CompileOptions& options, const CompileProgressFn& progress)
      : model_(model),
        setup_(setup),
        options_(options),
        progress_(progress),
        items_(ItemsOf(setup.plan)),
        prepares_(setup.device->RealNow().has_value()),
        done_(items_.size()) {
    // The plan names the model by its hash; graphs of another build may differ.
    ContentHash hash;
    hash.Add(ToJson(setup.plan));
    hash.Add(kVersion);
    hash.Add(kCommit);
    made_from_ = hash.Hex();
  }

  Result<std::vector<CompiledProgram>> Run() {
    if (progress_ && !progress_({}, 0, items_.size())) Stop({Code::kCancelled, "compile: stopped"});
    if (!failure_) {
      std::vector<std::jthread> threads;
      for (uint32_t t = 0; t < std::max(1u, options_.n_parallel); ++t) threads.emplace_back([this] { Work(); });
    }
    if (failure_) return *failure_;
    return std::move(done_);
  }

 private:
  void Work() {
    for (size_t i = next_++; i < items_.size() && !stopped_; i = next_++) {
      CompiledProgram done;
      const Status status = Make(items_[i], done);
      const std::lock_guard lock(mutex_);
      if (!status.ok()) return Stop(status.error());
      done_[i] = done;
      if (progress_ && !progress_(done, ++n_done_, items_.size())) return Stop({Code::kCancelled, "compile: stopped"});
    }
  }

  void Stop(const Error& error) {
    stopped_ = true;
    if (!failure_) failure_ = error;
  }

  // What is wrong with one program is in `done`; an error is of the disk, or an interrupt, and ends everything.
  Status Make(const Item& item, CompiledProgram& done) {
    done.name = ProgramName(item.layer, item.group);
    if (!options_.out_dir.empty()) done.package = options_.out_dir + "/" + done.name + ".mlpackage";
    const bool has_package = !done.package.empty() && IsKept(done);
    if (has_package) AtomicFolder::RemoveLeftovers(done.package);  // nobody will write it
    if (has_package && !prepares_) {
      done.kept = true;
      return Ok{};
    }
    auto graph = BuildProgram(model_, setup_.plan, item.layer, item.group, nullptr);
    if (!graph.ok()) return Refuse(graph.error(), done);
    if (const Status prepared = setup_.device->Prepare(*graph, done.name); !prepared.ok()) {
      const Code code = prepared.error().code;
      if (code == Code::kIo || code == Code::kCancelled) return prepared;
      return Refuse(prepared.error(), done);
    }
    done.kept = has_package;
    if (done.package.empty()) done.size_bytes = graph->WeightBytes();
    if (has_package || done.package.empty()) return Ok{};
    WritePackageOptions options;
    options.weight_bytes_key = kWeightBytes;
    options.user_defined = {{kMadeFrom, made_from_}, {kProgram, done.name}, {kNpu, setup_.plan.npu}};
    const auto written = WritePackage(*graph, done.package, options);
    if (!written.ok()) return written.error();
    done.size_bytes = written->model_bytes + written->weight_bytes;
    return Ok{};
  }

  Status Refuse(const Error& error, CompiledProgram& done) const {
    done.failure = error.message;
    done.package.clear();
    return Ok{};
  }

  // Whether the package is there, made from the same things, and its weights have their length. Packages appear whole;
  // somebody may have cut or exchanged them since. Weights that were changed in place are not seen.
  bool IsKept(CompiledProgram& done) const {
    std::error_code error;
    if (!fs::is_directory(fs::symlink_status(done.package, error))) return false;
    const auto summary = SummarizePackage(done.package);
    if (!summary.ok()) return false;
    const auto& says = summary->metadata.user_defined;
    const std::pair<const char*, std::string> wanted[] = {
        {kMadeFrom, made_from_}, {kProgram, done.name}, {kWeightBytes, fmt::format("{}", summary->weight_file_bytes)}};
    for (const auto& [key, value] : wanted) {
      const auto at = says.find(key);
      if (at == says.end() || at->second != value) return false;
    }
    done.size_bytes = summary->model_bytes + summary->weight_file_bytes;
    return true;
  }

  const Model& model_;
  const NpuSetup& setup_;
  const CompileOptions& options_;
  const CompileProgressFn& progress_;
  const std::vector<Item> items_;
  const bool prepares_;  // a real device keeps compiled programs
  std::string made_from_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  size_t n_done_ = 0;
  std::vector<CompiledProgram> done_;
  std::optional<Error> failure_;
};

}  // namespace

Result<CompileReport> CompilePrograms(const std::string& model_path, const EngineOptions& options,
                                      const CompileOptions& compile, const CompileProgressFn& progress,
                                      const GoOnFn& go_on) {
  NM_TRY_VAR(const Model model, Model::Open(model_path, ConfigOptions{options.phimoe_llama_cpp}));
  NM_TRY_VAR(const EngineOptions filled, FillDefaults(options, model.config()));
  NM_TRY_VAR(const NpuSetup setup, SetUpNpu(model, filled, go_on));
  CompileOptions chosen = compile;
  CompileReport report;
  report.npu = setup.device->Spec().name;
  report.plan = setup.plan_source;
  report.lengths = {setup.plan.chunk_tokens, setup.plan.moe_batch_tokens};
  report.compiled = setup.device->RealNow().has_value();
  if (chosen.out_dir.empty() && !report.compiled) chosen.out_dir = SidecarPath(model_path, "packages");
  if (!chosen.out_dir.empty()) {
    std::error_code error;
    fs::create_directories(chosen.out_dir, error);
    if (error) return MakeError(Code::kIo, "{}: cannot write: {}", chosen.out_dir, error.message());
  }
  NM_TRY_VAR(report.programs, Compiler(model, setup, chosen, progress).Run());
  return report;
}

Status CompilePackage(const std::string& package, const std::string& compiled, std::string_view units) {
  NM_TRY_VAR(const ComputeUnits parsed, ParseComputeUnits(units));
  return CompileAndTry(package, compiled, parsed);
}

std::string DefaultCacheFolder() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value != nullptr && value[0] == '/' ? value : "");  // a relative one is void, says XDG
  };
  const std::string home = variable("HOME");
#if defined(__APPLE__)
  return home.empty() ? home : home + "/Library/Caches/npumoe";
#else
  const std::string cache = variable("XDG_CACHE_HOME");
  if (!cache.empty()) return cache + "/npumoe";
  return home.empty() ? home : home + "/.cache/npumoe";
#endif
}

std::vector<CachedProgram> ListPrograms(const std::string& cache_folder) {
  const std::string folder = cache_folder + "/" + std::string(kProgramsFolder);
  std::error_code error;
  if (!fs::is_directory(folder, error)) return {};
  return ProgramCache(folder, UINT64_MAX).List();
}

Result<RemovedPrograms> RemovePrograms(const std::string& cache_folder,
                                       const std::function<bool(const CachedProgram&)>& wanted) {
  const std::string folder = cache_folder + "/" + std::string(kProgramsFolder);
  RemovedPrograms removed;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return removed;
  ProgramCache cache(folder, UINT64_MAX);
  if (!cache.note().empty()) return MakeError(Code::kIo, "{}", cache.note());
  return cache.Remove(wanted);
}

}  // namespace npumoe
