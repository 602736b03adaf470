// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/simulate_json.h"

#include "apps/npumoe/text.h"

namespace npumoe {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const SimulatedValue& value) { return {{"mean", value.mean}, {"deviation", value.deviation}}; }

Json ToJson(const SimulatedPlacement& p, uint32_t prompt_tokens, bool details) {
  Json json = {{"placement", p.placement},
               {"order", p.order},
               {"mode", p.mode},
               {"objective", p.objective},
               {"ttft_seconds", ToJson(p.ttft_seconds)},
               {"tokens_per_second", prompt_tokens / p.ttft_seconds.mean},
               {"joules_per_token", ToJson(p.joules_per_token)},
               {"cpu_busy_seconds", ToJson(p.cpu_seconds)},
               {"npu_busy_seconds", ToJson(p.npu_seconds)},
               {"padding", ToJson(p.padding)},
               {"dropped", ToJson(p.dropped)},
               {"spilled", ToJson(p.spilled)},
               {"on_npu", ToJson(p.on_npu)},
               {"gap_to_bound", ToJson(p.gap)},
               {"stages", Json::object()},
               {"dispatch_floor_seconds", p.floor_seconds},
               {"expert_dispatches", p.n_dispatches},
               {"n_programs", p.n_programs},
               {"program_bytes", p.program_bytes},
               {"planned_seconds", p.planned_seconds},
               {"planned_joules", p.planned_joules}};
  for (const SimulatedStage& stage : p.stages) json["stages"][stage.name] = stage.seconds;
  if (!details) return json;
  json["tiers"] = p.tiers;
  json["zones"] = Json::array();
  for (const SimulatedZone& zone : p.zones) {
    json["zones"].push_back({{"track", zone.track}, {"name", zone.name}, {"begin", zone.begin}, {"end", zone.end}});
  }
  return json;
}

}  // namespace

Json ToJson(const SimulateReport& report, bool details) {
  Json json = {{"simulated", true},
               {"npu", report.npu},
               {"npu_title", report.npu_title},
               {"model", ReplaceInvalidUtf8(report.model)},
               {"routing", ReplaceInvalidUtf8(report.routing)},
               {"prompt_tokens", report.prompt_tokens},
               {"chunk_tokens", report.chunk_tokens},
               {"seeds", report.n_seeds},
               {"n_layers", report.n_layers},
               {"n_experts", report.n_experts},
               {"top_k", report.top_k},
               {"placements", Json::array()}};
  for (const SimulatedPlacement& placement : report.placements) {
    json["placements"].push_back(ToJson(placement, report.prompt_tokens, details));
  }
  if (details) json["popularity"] = report.popularity;
  return json;
}

}  // namespace npumoe
