// SPDX-License-Identifier: Apache-2.0
#include "moe/plan.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/check.h"
#include "model/json_fields.h"

namespace npumoe {
namespace {

using nlohmann::json;

template <typename T, size_t N>
using Names = std::array<std::pair<T, std::string_view>, N>;

constexpr Names<PrefillOrder, 3> kOrders{{{PrefillOrder::kLayerMajor, "layer-major"},
                                          {PrefillOrder::kChunkMajor, "chunk-major"},
                                          {PrefillOrder::kWavefront, "wavefront"}}};
constexpr Names<std::optional<PrefillOrder>, 3> kOrderOptions{
    {{std::nullopt, "auto"}, {PrefillOrder::kLayerMajor, "layer-major"}, {PrefillOrder::kWavefront, "wavefront"}}};
constexpr Names<OverflowMode, 3> kModes{
    {{OverflowMode::kExact, "exact"}, {OverflowMode::kPrune, "prune"}, {OverflowMode::kReroute, "reroute"}}};
constexpr Names<Objective, 3> kObjectives{
    {{Objective::kTime, "time"}, {Objective::kEnergy, "energy"}, {Objective::kEnergyDelay, "edp"}}};
constexpr Names<AttentionPlace, 2> kPlaces{{{AttentionPlace::kNpu, "npu"}, {AttentionPlace::kCpu, "cpu"}}};
constexpr Names<WeightFormat, 5> kFormats{{{WeightFormat::kFp16, "fp16"},
                                           {WeightFormat::kInt8, "int8"},
                                           {WeightFormat::kLut8, "lut8"},
                                           {WeightFormat::kLut6, "lut6"},
                                           {WeightFormat::kLut4, "lut4"}}};
constexpr Names<Placement, 8> kPlacements{{{Placement::kOurs, "ours"},
                                           {Placement::kCpu, "cpu"},
                                           {Placement::kNaive, "naive"},
                                           {Placement::kAnemll, "anemll"},
                                           {Placement::kBase, "base"},
                                           {Placement::kTiers, "tiers"},
                                           {Placement::kTiersGroups, "tiers+groups"},
                                           {Placement::kAll, "all"}}};

// Caps on lists: lengths of the cache double, and four capacities are what we choose from.
constexpr size_t kMaxKvBuckets = 64, kMaxCapacities = 64;
// Seconds and joules of a batch: decades, far above what any machine could be modelled to need.
constexpr double kMaxExpected = 1e9;

template <typename T, size_t N>
std::string_view NameOf(const Names<T, N>& names, T value) {
  for (const auto& [key, name] : names) {
    if (key == value) return name;
  }
  return "?";
}

template <typename T, size_t N>
std::vector<std::string_view> NamesOf(const Names<T, N>& names) {
  std::vector<std::string_view> spelled;
  for (const auto& [value, name] : names) spelled.push_back(name);
  return spelled;
}

template <typename T, size_t N>
Result<T> Parse(const Names<T, N>& names, std::string_view name, std::string_view option) {
  std::string known;
  for (const auto& [value, spelled] : names) {
    if (spelled == name) return value;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", spelled);
  }
  return MakeError(Code::kInvalidArgument, "{}: '{}' is unknown, wanted one of {}", option, name.substr(0, 40), known);
}

// Reads fields of one JSON object; every message names the file and the field.
class Fields {
 public:
  Fields(const json& object, std::string_view name) : object_(object), name_(name) {}

  Result<const json*> Get(std::string_view key) const {
    const auto found = object_.is_object() ? object_.find(key) : object_.end();
    if (found == object_.end()) return MakeError(Code::kCorruptFile, "{}: no field '{}'", name_, key);
    return &*found;
  }
  Result<uint32_t> Uint(std::string_view key) const {
    NM_TRY_VAR(const json* value, Get(key));
    return AsUint(*value, key);
  }
  Result<double> Number(std::string_view key) const {
    NM_TRY_VAR(const json* value, Get(key));
    if (!value->is_number()) return Wrong(key, "a number", *value);
    return value->get<double>();
  }
  // 0 to `limit`.
  Result<double> NumberUpTo(std::string_view key, double limit) const {
    NM_TRY_VAR(const double value, Number(key));
    if (value >= 0 && value <= limit) return value;
    return MakeError(Code::kCorruptFile, "{}: field '{}': wanted 0 to {}, got {}", name_, key, limit, value);
  }
  Result<bool> Bool(std::string_view key) const {
    NM_TRY_VAR(const json* value, Get(key));
    if (!value->is_boolean()) return Wrong(key, "true or false", *value);
    return value->get<bool>();
  }
  Result<std::string> String(std::string_view key) const {
    NM_TRY_VAR(const json* value, Get(key));
    if (!value->is_string()) return Wrong(key, "a string", *value);
    return value->get<std::string>();
  }
  Result<std::vector<uint32_t>> Uints(std::string_view key, size_t limit) const {
    NM_TRY_VAR(const json* value, Get(key));
    if (!value->is_array()) return Wrong(key, "a list", *value);
    if (value->size() > limit) {
      return MakeError(Code::kCorruptFile, "{}: field '{}': {} elements, limit {}", name_, key, value->size(), limit);
    }
    std::vector<uint32_t> out;
    for (const json& element : *value) {
      NM_TRY_VAR(const uint32_t number, AsUint(element, key));
      out.push_back(number);
    }
    return out;
  }
  template <typename T, size_t N>
  Result<T> Enum(std::string_view key, const Names<T, N>& names) const {
    NM_TRY_VAR(const std::string text, String(key));
    for (const auto& [value, name] : names) {
      if (name == text) return value;
    }
    return MakeError(Code::kCorruptFile, "{}: field '{}': '{}' is unknown", name_, key, text.substr(0, 40));
  }
  Error Wrong(std::string_view key, std::string_view wanted, const json& got) const {
    return MakeError(Code::kCorruptFile, "{}: field '{}': wanted {}, got {}", name_, key, wanted, got.type_name());
  }

 private:
  Result<uint32_t> AsUint(const json& value, std::string_view key) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > UINT32_MAX) {
      return Wrong(key, "a whole number below 2^32", value);
    }
    return value.get<uint32_t>();
  }

  const json& object_;
  std::string_view name_;
};

json ToJson(const LayerPlan& layer) {
  json groups = json::array();
  for (const ExpertGroup& group : layer.groups) {
    groups.push_back({{"capacities", group.capacities}, {"experts", group.experts}});
  }
  return {{"attention", NameOf(kPlaces, layer.attention)},
          {"cpu_experts", layer.cpu_experts},
          {"expert_scale", layer.expert_scale},
          {"groups", groups}};
}

Result<LayerPlan> ParseLayer(const json& value, std::string_view name) {
  const Fields fields(value, name);
  LayerPlan layer;
  NM_TRY_VAR(layer.attention, fields.Enum("attention", kPlaces));
  NM_TRY_VAR(layer.cpu_experts, fields.Uints("cpu_experts", kMaxExperts));
  NM_TRY_VAR(const double scale, fields.Number("expert_scale"));
  if (!(scale >= 1 && scale <= kMaxExpertScale)) {
    return MakeError(Code::kCorruptFile, "{}: field 'expert_scale': wanted 1 to {}, got {}", name, kMaxExpertScale,
                     scale);
  }
  layer.expert_scale = static_cast<float>(scale);
  NM_TRY_VAR(const json* groups, fields.Get("groups"));
  if (!groups->is_array()) return fields.Wrong("groups", "a list", *groups);
  if (groups->size() > kMaxExperts)
    return MakeError(Code::kCorruptFile, "{}: field 'groups': {} elements", name, groups->size());
  for (const json& entry : *groups) {
    const Fields group_fields(entry, name);
    ExpertGroup group;
    NM_TRY_VAR(group.experts, group_fields.Uints("experts", kMaxExperts));
    NM_TRY_VAR(group.capacities, group_fields.Uints("capacities", kMaxCapacities));
    layer.groups.push_back(std::move(group));
  }
  return layer;
}

// Fields that contradict each other: no planner writes them so.
Status CheckAsPlanned(const Plan& plan, std::string_view name) {
  const auto contradicts = [&](std::string_view field, std::string_view wanted, std::string_view why, const auto& got) {
    return MakeError(Code::kCorruptFile, "{}: field '{}': wanted {} with {}, got {}", name, field, wanted, why, got);
  };
  const bool ours = plan.placement == Placement::kOurs;
  const std::string placement = fmt::format("placement {}", ToString(plan.placement));
  if (ours == (plan.order == PrefillOrder::kChunkMajor)) {
    return contradicts("order", ours ? "layer-major or wavefront" : "chunk-major", placement, ToString(plan.order));
  }
  if (plan.per_run_capacity != ours) {
    return contradicts("per_run_capacity", ours ? "true" : "false", placement, plan.per_run_capacity);
  }
  if (ours ? plan.moe_batch_tokens < plan.chunk_tokens : plan.moe_batch_tokens != plan.chunk_tokens) {
    return contradicts("moe_batch_tokens", fmt::format("{}{}", ours ? "at least " : "", plan.chunk_tokens),
                       placement + " and that chunk_tokens", plan.moe_batch_tokens);
  }
  // Time has a price of joules only where it would cost a wavefront too many of them; a product of both may be smallest
  // without one.
  const bool may_pay = ours && (plan.objective != Objective::kTime || plan.order == PrefillOrder::kWavefront);
  const bool must_pay = ours && plan.objective == Objective::kEnergy && plan.expected_joules > 0;
  if (may_pay ? must_pay && plan.joule_price == 0 : plan.joule_price > 0) {
    return contradicts(
        "joule_price", may_pay ? "above 0" : "0",
        fmt::format("{}, objective {} and order {}", placement, ToString(plan.objective), ToString(plan.order)),
        plan.joule_price);
  }
  if (!plan.calibrated && !plan.stats_hash.empty()) {
    return contradicts("stats_hash", "nothing", "calibrated false", plan.stats_hash.substr(0, 40));
  }
  return Ok{};
}

Status CheckAscending(const std::vector<uint32_t>& values, std::string_view what, bool may_hold_zero) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] > kMaxContext) {
      return MakeError(Code::kInvalidArgument, "plan: {} hold {}, limit {}", what, values[i], kMaxContext);
    }
    if ((values[i] > 0 || may_hold_zero) && (i == 0 || values[i] > values[i - 1])) continue;
    return MakeError(Code::kInvalidArgument, "plan: {} are not ascending at {}", what, values[i]);
  }
  return Ok{};
}

Status CheckLayer(const LayerPlan& layer, uint32_t index, uint32_t n_experts) {
  std::set<uint32_t> seen;
  const auto take = [&](uint32_t expert) -> Status {
    if (expert >= n_experts) {
      return MakeError(Code::kInvalidArgument, "plan: layer {}: expert {}, the model has {}", index, expert, n_experts);
    }
    if (!seen.insert(expert).second) {
      return MakeError(Code::kInvalidArgument, "plan: layer {}: expert {} is placed twice", index, expert);
    }
    return Ok{};
  };
  for (const ExpertGroup& group : layer.groups) {
    if (group.experts.empty() || group.capacities.empty()) {
      return MakeError(Code::kInvalidArgument, "plan: layer {}: a group without experts or capacities", index);
    }
    NM_TRY(CheckAscending(group.capacities, fmt::format("layer {}: capacities", index), false));
    for (const uint32_t expert : group.experts) NM_TRY(take(expert));
  }
  for (const uint32_t expert : layer.cpu_experts) NM_TRY(take(expert));
  if (seen.size() != n_experts) {
    uint32_t missing = 0;
    while (seen.contains(missing)) ++missing;
    return MakeError(Code::kInvalidArgument, "plan: layer {}: expert {} is placed nowhere", index, missing);
  }
  return Ok{};
}

}  // namespace

std::string_view ToString(PrefillOrder order) { return NameOf(kOrders, order); }
std::string_view ToString(OverflowMode mode) { return NameOf(kModes, mode); }
std::string_view ToString(Objective objective) { return NameOf(kObjectives, objective); }
std::string_view ToString(WeightFormat format) { return NameOf(kFormats, format); }
std::string_view ToString(Placement placement) { return NameOf(kPlacements, placement); }

std::vector<std::string_view> PlacementNames() { return NamesOf(kPlacements); }
std::vector<std::string_view> WeightFormatNames() { return NamesOf(kFormats); }
std::vector<std::string_view> ObjectiveNames() { return NamesOf(kObjectives); }
std::vector<std::string_view> OverflowModeNames() { return NamesOf(kModes); }
std::vector<std::string_view> OrderOptionNames() { return NamesOf(kOrderOptions); }

Result<Objective> ParseObjective(std::string_view name) { return Parse(kObjectives, name, "objective"); }
Result<std::optional<PrefillOrder>> ParseOrderOption(std::string_view name) {
  return Parse(kOrderOptions, name, "order");
}
Result<Placement> ParsePlacement(std::string_view name) { return Parse(kPlacements, name, "placement"); }
Result<OverflowMode> ParseOverflowMode(std::string_view name) { return Parse(kModes, name, "mode"); }
Result<WeightFormat> ParseWeightFormat(std::string_view name, std::string_view option) {
  return Parse(kFormats, name, option);
}

uint32_t FirstHalf(PrefillOrder order, uint32_t chunk_tokens, uint32_t n_tokens) {
  if (order != PrefillOrder::kWavefront) return n_tokens;
  const uint32_t n_chunks = (n_tokens + chunk_tokens - 1) / chunk_tokens;
  return std::min((n_chunks + 1) / 2 * chunk_tokens, n_tokens);
}

uint32_t FirstHalf(const Plan& plan, uint32_t n_tokens) {
  return n_tokens <= plan.whole_tokens ? n_tokens : FirstHalf(plan.order, plan.chunk_tokens, n_tokens);
}

std::string ToJson(const Plan& plan) {
  json layers = json::array();
  for (const LayerPlan& layer : plan.layers) layers.push_back(ToJson(layer));
  const json document{{"attention_weights", ToString(plan.attention_weights)},
                      {"calibrated", plan.calibrated},
                      {"chunk_tokens", plan.chunk_tokens},
                      {"expected_joules", plan.expected_joules},
                      {"expected_seconds", plan.expected_seconds},
                      {"expert_weights", ToString(plan.expert_weights)},
                      {"joule_price", plan.joule_price},
                      {"kv_buckets", plan.kv_buckets},
                      {"layers", layers},
                      {"mode", ToString(plan.mode)},
                      {"model_hash", plan.model_hash},
                      {"moe_batch_tokens", plan.moe_batch_tokens},
                      {"npu", plan.npu},
                      {"objective", ToString(plan.objective)},
                      {"order", ToString(plan.order)},
                      {"per_run_capacity", plan.per_run_capacity},
                      {"placement", ToString(plan.placement)},
                      {"spec_hash", plan.spec_hash},
                      {"stats_hash", plan.stats_hash},
                      {"version", plan.version},
                      {"whole_tokens", plan.whole_tokens}};
  return document.dump(1) + "\n";
}

Result<Plan> ParsePlan(std::string_view text, std::string_view name) {
  NM_TRY_VAR(const json document, ParseJsonObject(text, name));
  const Fields fields(document, name);
  Plan plan;
  NM_TRY_VAR(plan.version, fields.Uint("version"));
  if (plan.version != kPlanVersion) {
    return MakeError(Code::kUnsupported, "{}: plan version {}, wanted {}: make it anew", name, plan.version,
                     kPlanVersion);
  }
  NM_TRY_VAR(plan.model_hash, fields.String("model_hash"));
  NM_TRY_VAR(plan.stats_hash, fields.String("stats_hash"));
  NM_TRY_VAR(plan.spec_hash, fields.String("spec_hash"));
  NM_TRY_VAR(plan.calibrated, fields.Bool("calibrated"));
  NM_TRY_VAR(plan.npu, fields.String("npu"));
  NM_TRY_VAR(plan.placement, fields.Enum("placement", kPlacements));
  NM_TRY_VAR(plan.chunk_tokens, fields.Uint("chunk_tokens"));
  NM_TRY_VAR(plan.moe_batch_tokens, fields.Uint("moe_batch_tokens"));
  NM_TRY_VAR(plan.kv_buckets, fields.Uints("kv_buckets", kMaxKvBuckets));
  NM_TRY_VAR(plan.order, fields.Enum("order", kOrders));
  // Plans from before there was a choice have none.
  if (document.contains("whole_tokens")) {
    NM_TRY_VAR(plan.whole_tokens, fields.Uint("whole_tokens"));
  }
  NM_TRY_VAR(plan.mode, fields.Enum("mode", kModes));
  NM_TRY_VAR(plan.objective, fields.Enum("objective", kObjectives));
  NM_TRY_VAR(plan.per_run_capacity, fields.Bool("per_run_capacity"));
  NM_TRY_VAR(plan.joule_price, fields.NumberUpTo("joule_price", kMaxJoulePrice));
  NM_TRY_VAR(plan.expert_weights, fields.Enum("expert_weights", kFormats));
  NM_TRY_VAR(plan.attention_weights, fields.Enum("attention_weights", kFormats));
  NM_TRY_VAR(plan.expected_seconds, fields.NumberUpTo("expected_seconds", kMaxExpected));
  NM_TRY_VAR(plan.expected_joules, fields.NumberUpTo("expected_joules", kMaxExpected));
  NM_TRY_VAR(const json* layers, fields.Get("layers"));
  if (!layers->is_array()) return fields.Wrong("layers", "a list", *layers);
  if (layers->size() > kMaxLayers) {
    return MakeError(Code::kCorruptFile, "{}: field 'layers': {} elements, limit {}", name, layers->size(), kMaxLayers);
  }
  for (const json& entry : *layers) {
    NM_TRY_VAR(LayerPlan layer, ParseLayer(entry, name));
    plan.layers.push_back(std::move(layer));
  }
  NM_TRY(CheckAsPlanned(plan, name));
  return plan;
}

Status CheckPlan(const Plan& plan, const ModelConfig& config) {
  if (plan.layers.size() != config.n_layers) {
    return MakeError(Code::kInvalidArgument, "plan: {} layers, the model has {}", plan.layers.size(), config.n_layers);
  }
  if (plan.chunk_tokens == 0 || plan.moe_batch_tokens == 0) {
    return MakeError(Code::kInvalidArgument, "plan: chunk_tokens {} and moe_batch_tokens {}, wanted above 0",
                     plan.chunk_tokens, plan.moe_batch_tokens);
  }
  if (const uint32_t longest = std::max(plan.chunk_tokens, plan.moe_batch_tokens); longest > kMaxContext) {
    return MakeError(Code::kInvalidArgument, "plan: chunk_tokens {} and moe_batch_tokens {}, limit {}",
                     plan.chunk_tokens, plan.moe_batch_tokens, kMaxContext);
  }
  NM_TRY(CheckAscending(plan.kv_buckets, "kv_buckets", true));
  const bool has_attention =
      std::ranges::any_of(plan.layers, [](const LayerPlan& l) { return l.attention == AttentionPlace::kNpu; });
  // A prompt begins without earlier positions.
  if (has_attention && (plan.kv_buckets.empty() || plan.kv_buckets[0] != 0)) {
    return MakeError(Code::kInvalidArgument, "plan: kv_buckets begin with {}, wanted 0 as layers have attention on the npu",
                     plan.kv_buckets.empty() ? "nothing" : fmt::format("{}", plan.kv_buckets[0]));
  }
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    NM_TRY(CheckLayer(plan.layers[layer], layer, config.IsMoeLayer(layer) ? config.n_experts : 0));
  }
  return Ok{};
}

}  // namespace npumoe
