// SPDX-License-Identifier: Apache-2.0
#include "engine/npu_device.h"

#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "engine/system.h"
#include "npu/coreml_npu.h"
#include "npu/program_cache.h"
#include "npu/simulated_device.h"
#include "npu/spec_document.h"
#include "npumoe/programs.h"

namespace npumoe {
namespace {

constexpr size_t kMaxSpecBytes = size_t{1} << 20;

std::string CacheFolder(const NpuOptions& options) {
  return options.cache_folder.empty() ? DefaultCacheFolder() : options.cache_folder;
}

}  // namespace

Result<NpuSpec> SpecOfNpu(const NpuOptions& options) {
  if (const auto name = SimulatedName(options.device)) {
    NM_TRY_VAR(const NpuSpec* const spec, FindSpec(*name));
    return *spec;
  }
  if (!IsCoreMlName(options.device)) {
    return MakeError(Code::kUnsupported, "npu '{}': unknown, wanted coreml or sim:NAME ({})", options.device,
                     SpecNames());
  }
  NM_TRY(CoreMlUnits(options.device));
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
  NM_TRY_VAR(core_ml.units, CoreMlUnits(options.device));
  const std::string folder = CacheFolder(options);
  if (!folder.empty()) core_ml.cache_folder = folder + "/" + std::string(kProgramsFolder);
  core_ml.cache_bytes = options.cache_bytes > 0 ? options.cache_bytes : kDefaultCacheBytes;
  core_ml.compiler = options.compiler;
  core_ml.keep_warm_seconds = options.keep_warm_seconds;
  return MakeCoreMlNpu(std::move(core_ml));
}

}  // namespace npumoe
