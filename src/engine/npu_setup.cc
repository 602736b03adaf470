// SPDX-License-Identifier: Apache-2.0
#include "engine/npu_setup.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "engine/plan_document.h"
#include "engine/system.h"
#include "npu/coreml_npu.h"
#include "npu/program_cache.h"
#include "npu/simulated_device.h"
#include "npu/spec_document.h"
#include "npumoe/programs.h"

namespace npumoe {
namespace {

constexpr std::string_view kSimulated = "sim:", kCoreMl = "coreml";
constexpr size_t kMaxSpecBytes = size_t{1} << 20;
// Far above any plan or statistics; stops endless devices.
constexpr size_t kMaxJsonBytes = size_t{256} << 20;

struct Document {
  std::string path, text;
};

// The file at `path`, or, when that is empty, the model's own if there is one.
Result<std::optional<Document>> ReadDocument(const std::string& path, const std::string& model_path,
                                             std::string_view name) {
  Document document{path.empty() ? SidecarPath(model_path, name) : path, {}};
  std::error_code ignored;
  if (path.empty() && !std::filesystem::exists(document.path, ignored)) return std::optional<Document>();
  NM_TRY_VAR(document.text, ReadFile(document.path, kMaxJsonBytes));
  return std::optional(std::move(document));
}

std::string CacheFolder(const NpuOptions& options) {
  return options.cache_folder.empty() ? DefaultCacheFolder() : options.cache_folder;
}

// "coreml" is the Neural Engine.
Result<ComputeUnits> UnitsOf(std::string_view device) {
  device.remove_prefix(kCoreMl.size());
  return device.empty() ? Result<ComputeUnits>(ComputeUnits::kCpuAndNeuralEngine) : ParseComputeUnits(device.substr(1));
}

}  // namespace

bool IsCoreMlName(std::string_view device) {
  return device == kCoreMl || device.starts_with(std::string(kCoreMl) + ":");
}

Result<NpuSpec> SpecOfNpu(const NpuOptions& options) {
  if (options.device.starts_with(kSimulated)) {
    NM_TRY_VAR(const NpuSpec* const spec, FindSpec(std::string_view(options.device).substr(kSimulated.size())));
    return *spec;
  }
  if (!IsCoreMlName(options.device)) {
    return MakeError(Code::kUnsupported, "npu '{}': unknown, wanted coreml or sim:NAME ({})", options.device,
                     SpecNames());
  }
  NM_TRY(UnitsOf(options.device));
  const CoreMlSystem system = DescribeCoreMl();
  if (!system.available) {
    return MakeError(Code::kUnsupported, "npu '{}': Core ML is not on this system, wanted sim:NAME ({})",
                     options.device, SpecNames());
  }
  const std::string chip = ChipName();
  NpuSpec spec = SpecOfChip(chip);
  if (!options.spec.empty()) {
    NM_TRY_VAR(const NpuSpec* const named, FindSpec(options.spec));
    spec = *named;
  }
  // Numbers measured on another system version still beat the table's only on the machine they come from: refused ones
  // are left aside, and the next self-test replaces them.
  const std::string path = CacheFolder(options) + "/" + std::string(kMeasuredSpecFile);
  if (const auto text = ReadFile(path, kMaxSpecBytes); text.ok() && options.spec.empty()) {
    static_cast<void>(ApplyMeasuredSpec(*text, path, chip, system.os_version, spec));
  }
  return spec;
}

Result<std::unique_ptr<NpuDevice>> MakeNpu(const NpuOptions& options, const NpuSpec& spec, uint32_t n_threads) {
  if (!IsCoreMlName(options.device)) return MakeSimulatedDevice(spec, n_threads);
  CoreMlNpuOptions core_ml;
  core_ml.spec = spec;
  NM_TRY_VAR(core_ml.units, UnitsOf(options.device));
  const std::string folder = CacheFolder(options);
  if (!folder.empty()) core_ml.cache_folder = folder + "/" + std::string(kProgramsFolder);
  core_ml.cache_bytes = options.cache_bytes > 0 ? options.cache_bytes : kDefaultCacheBytes;
  core_ml.compiler = options.compiler;
  return MakeCoreMlNpu(std::move(core_ml));
}

Result<NpuSetup> SetUpNpu(const Model& model, const EngineOptions& options) {
  const NpuOptions& npu = options.npu;
  NM_TRY_VAR(const NpuSpec found, SpecOfNpu(npu));
  NpuSetup setup;
  NM_TRY_VAR(setup.device, MakeNpu(npu, found, options.n_threads));
  const NpuSpec* const spec = &setup.device->Spec();
  NM_TRY_VAR(const auto stats_file, ReadDocument(npu.stats_path, model.path(), kStatsFile));
  std::optional<RoutingStats> stats;
  if (stats_file) {
    NM_TRY_VAR(stats, ParseRoutingStats(stats_file->text, stats_file->path));
  }
  std::optional<Document> plan_file;
  if (!npu.make_plan) {
    NM_TRY_VAR(plan_file, ReadDocument(npu.plan_path, model.path(), kPlanFile));
  }
  std::string why_not;  // the model's own plan is not taken
  if (plan_file) {
    auto loaded = LoadPlan(plan_file->text, plan_file->path, model, *spec, stats ? &*stats : nullptr);
    if (loaded.ok()) {
      setup.plan = std::move(loaded).value();
      setup.plan_source = plan_file->path;
    } else if (!npu.plan_path.empty()) {
      return loaded.error();  // one that was asked for must be right
    } else if (PlanNpu(plan_file->text) != spec->name) {
      why_not = fmt::format("; {} is for another NPU", plan_file->path);
    } else {
      why_not = "; " + loaded.error().message;
    }
  }
  if (setup.plan_source.empty()) {
    PlanOptions wanted = npu.plan;
    wanted.npu = spec->name;
    NM_TRY_VAR(PlanRequest request, ParsePlanOptions(wanted));
    request.moe_batch_tokens = std::min(request.moe_batch_tokens, options.context_tokens);
    request.prompt_tokens = options.context_tokens;  // whatever the session can be given
    NM_TRY_VAR(PlanWithReasons made, MakePlanFor(model, stats ? &*stats : nullptr, *spec, request));
    setup.plan = std::move(made.plan);
    setup.plan_source = (stats ? "made for this run from " + stats_file->path
                               : "made for this run without calibration: experts count as equally popular") +
                        why_not;
  }
  if (!npu.mode.empty()) {
    NM_TRY_VAR(setup.plan.mode, ParseOverflowMode(npu.mode));
  }
  return setup;
}

}  // namespace npumoe
