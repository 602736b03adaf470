// SPDX-License-Identifier: Apache-2.0
#include "engine/npu_setup.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "engine/model_info.h"
#include "engine/npu_device.h"
#include "engine/plan_document.h"
#include "engine/weight_choice.h"

namespace npumoe {
namespace {

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

}  // namespace

Result<NpuSetup> SetUpNpu(const Model& model, const EngineOptions& options, const GoOnFn& go_on) {
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
  if (plan_file) {
    auto loaded = LoadPlan(plan_file->text, plan_file->path, model, *spec, stats ? &*stats : nullptr);
    if (loaded.ok()) {
      setup.plan = std::move(loaded).value();
      setup.plan_source = plan_file->path;
    } else if (!npu.plan_path.empty()) {
      return loaded.error();  // one that was asked for must be right
    } else {
      const std::string planned = PlannedNpu(plan_file->text);
      const bool is_for_another = !planned.empty() && planned != spec->name;
      setup.plan_refused =
          is_for_another ? fmt::format("{}: is for npu {}", plan_file->path, planned) : loaded.error().message;
    }
  }
  if (setup.plan_source.empty()) {
    PlanOptions wanted = npu.plan;
    wanted.npu = spec->name;
    NM_TRY_VAR(PlanRequest request, ParsePlanOptions(wanted));
    request.moe_batch_tokens = std::min(request.moe_batch_tokens, options.context_tokens);
    request.prompt_tokens = options.context_tokens;  // whatever the session can be given
    std::optional<WeightErrors> errors;
    if (ChoosesWeights(wanted)) {
      NM_TRY_VAR(const Tokenizer tokenizer, OpenTokenizer(model, options.tokenizer_pre));
      NM_TRY_VAR(errors, MeasureWeightErrors(model, SampleTokens(tokenizer, wanted), options.n_threads, go_on));
    }
    NM_TRY_VAR(PlanWithReasons made, MakePlanWithWeights(model, stats ? &*stats : nullptr, *spec, request, wanted,
                                                         errors ? &*errors : nullptr, go_on));
    setup.plan = std::move(made.plan);
    setup.plan_source = (stats ? "made for this run from " + stats_file->path
                               : "made for this run without calibration: experts count as equally popular");
  }
  if (!npu.mode.empty()) {
    NM_TRY_VAR(setup.plan.mode, ParseOverflowMode(npu.mode));
  }
  return setup;
}

}  // namespace npumoe
