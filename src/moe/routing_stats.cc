// SPDX-License-Identifier: Apache-2.0
#include "moe/routing_stats.h"

#include <algorithm>
#include <numeric>
#include <cfloat>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "model/config.h"
#include "model/json_fields.h"

namespace npumoe {
namespace {

using nlohmann::json;

constexpr uint32_t kStatsVersion = 1;
// Caps on what a file may make us hold; calibration asks for a handful of each.
constexpr size_t kMaxChunkLengths = 64, kMaxSources = 1024;
constexpr uint64_t kMaxCount = uint64_t{1} << 53;  // whole numbers that any JSON tool keeps exactly
constexpr size_t kShownTextBytes = 256;

// JSON has no infinity; a value beyond every float endangers fp16 just as much.
double Finite(double value) { return std::isfinite(value) ? value : static_cast<double>(FLT_MAX); }

// ---- writing ----

json LoadsToJson(const LayerRouting& layer) {
  json chunks = json::array();
  for (const auto& experts : layer.loads) {
    json list = json::array();
    for (const LoadHistogram& histogram : experts) {
      json pairs = json::array();
      for (const auto& [load, count] : histogram) pairs.push_back({load, count});
      list.push_back(std::move(pairs));
    }
    chunks.push_back(std::move(list));
  }
  return chunks;
}

// The upper triangle with the diagonal, row by row: the matrix is symmetric.
json CoActivationToJson(const LayerRouting& layer, size_t n_experts) {
  json list = json::array();
  if (layer.co_activation.size() != n_experts * n_experts) return list;
  for (size_t a = 0; a < n_experts; ++a) {
    for (size_t b = a; b < n_experts; ++b) list.push_back(layer.co_activation[a * n_experts + b]);
  }
  return list;
}

json LayerToJson(const LayerRouting& layer, size_t n_experts) {
  json norms = json::array(), range = json::object();
  for (const double norm : layer.mean_output_norm) norms.push_back(Finite(norm));
  for (const ActivationStage& stage : kActivationStages)
    range[std::string(stage.name)] = Finite(layer.range.*stage.value);
  return {{"co_activation", CoActivationToJson(layer, n_experts)},
          {"half_tokens", layer.half_tokens},
          {"loads", LoadsToJson(layer)},
          {"mean_output_norm", std::move(norms)},
          {"range", std::move(range)},
          {"source_tokens", layer.source_tokens},
          {"tokens", layer.tokens}};
}

// ---- reading ----

// Reads the arrays of one layer; every message names file, layer and field.
class LayerReader {
 public:
  LayerReader(const json& object, std::string_view name, size_t index, const RoutingStats& stats)
      : stats_(stats), where_(fmt::format("{}: layer {}", name, index)), object_(object) {}

  Result<LayerRouting> Read() const {
    if (!object_.is_object()) return MakeError(Code::kCorruptFile, "{}: wanted an object", where_);
    LayerRouting layer;
    NM_TRY_VAR(const json* tokens, List("tokens"));
    NM_TRY_VAR(layer.range, Range());
    const size_t n = tokens->empty() ? 0 : stats_.n_experts;  // 0: a dense layer
    NM_TRY_VAR(layer.tokens, Counts("tokens", *tokens, n));
    NM_TRY_VAR(layer.loads, Loads(n));
    NM_TRY_VAR(layer.mean_output_norm, Norms(n));
    NM_TRY_VAR(layer.co_activation, CoActivation(n));
    NM_TRY_VAR(layer.half_tokens, Rows("half_tokens", n == 0 ? 0 : 2, n));
    NM_TRY_VAR(layer.source_tokens, Rows("source_tokens", n == 0 ? 0 : stats_.sources.size(), n));
    NM_TRY(CheckSums(layer));
    return layer;
  }

 private:
  Error Wrong(std::string_view field, std::string_view problem) const {
    return MakeError(Code::kCorruptFile, "{}: field '{}': {}", where_, field, problem);
  }

  // What was counted several ways must agree: numbers of an edited or mixed file would make a plan all the same.
  Status CheckSums(const LayerRouting& layer) const {
    if (layer.tokens.empty()) return Ok{};
    const uint64_t wanted = stats_.n_tokens * stats_.top_k;
    const uint64_t routed = std::accumulate(layer.tokens.begin(), layer.tokens.end(), uint64_t{0});
    if (routed != wanted) {
      return Wrong("tokens", fmt::format("{} in all, wanted {}, n_tokens times top_k", routed, wanted));
    }
    NM_TRY(CheckParts("half_tokens", layer.half_tokens, layer.tokens));
    if (!layer.source_tokens.empty()) NM_TRY(CheckParts("source_tokens", layer.source_tokens, layer.tokens));
    for (size_t length = 0; length < layer.loads.size(); ++length) NM_TRY(CheckLoads(layer.loads[length], length));
    return Ok{};
  }

  Status CheckParts(std::string_view field, const std::vector<std::vector<uint64_t>>& parts,
                    const std::vector<uint64_t>& whole) const {
    for (size_t expert = 0; expert < whole.size(); ++expert) {
      uint64_t sum = 0;
      for (const auto& part : parts) sum += part[expert];
      if (sum == whole[expert]) continue;
      return Wrong(field, fmt::format("{} in all for expert {}, wanted its {} tokens", sum, expert, whole[expert]));
    }
    return Ok{};
  }

  // Every chunk has a load of every expert, and the loads of a chunk are its choices.
  Status CheckLoads(const std::vector<LoadHistogram>& experts, size_t length) const {
    uint64_t n_chunks = 0, rows = 0;
    for (size_t expert = 0; expert < experts.size(); ++expert) {
      uint64_t chunks = 0;
      for (const auto& [load, count] : experts[expert]) {
        chunks += count;
        rows += load * count;
      }
      if (expert == 0) n_chunks = chunks;
      if (chunks == n_chunks) continue;
      return Wrong("loads", fmt::format("{} chunks of {} tokens for expert {}, wanted {} as for expert 0", chunks,
                                        stats_.chunk_tokens[length], expert, n_chunks));
    }
    const uint64_t wanted = n_chunks * stats_.chunk_tokens[length] * stats_.top_k;
    if (rows == wanted) return Ok{};
    return Wrong("loads", fmt::format("{} rows in {} chunks of {} tokens, wanted {}", rows, n_chunks,
                                      stats_.chunk_tokens[length], wanted));
  }

  Result<const json*> List(std::string_view field) const {
    const auto found = object_.find(field);
    if (found == object_.end()) return Wrong(field, "missing");
    if (!found->is_array()) return Wrong(field, "wanted a list");
    return &*found;
  }

  Status Sized(std::string_view field, const json& list, size_t wanted) const {
    if (!list.is_array()) return Wrong(field, "wanted a list");
    if (list.size() == wanted) return Ok{};
    return Wrong(field, fmt::format("{} elements, wanted {}", list.size(), wanted));
  }

  Result<uint64_t> Count(std::string_view field, const json& value, uint64_t limit) const {
    if (!value.is_number_unsigned()) return Wrong(field, "wanted a whole number of at least 0");
    const auto number = value.get<uint64_t>();
    if (number > limit) return Wrong(field, fmt::format("{}, limit {}", number, limit));
    return number;
  }

  Result<double> Number(std::string_view field, const json& value) const {
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0) {
      return Wrong(field, "wanted a number of at least 0");
    }
    return value.get<double>();
  }

  Result<std::vector<uint64_t>> Counts(std::string_view field, const json& list, size_t wanted) const {
    NM_TRY(Sized(field, list, wanted));
    std::vector<uint64_t> out;
    for (const json& value : list) {
      NM_TRY_VAR(const uint64_t number, Count(field, value, kMaxCount));
      out.push_back(number);
    }
    return out;
  }

  Result<std::vector<std::vector<uint64_t>>> Rows(std::string_view field, size_t n_rows, size_t n) const {
    NM_TRY_VAR(const json* list, List(field));
    NM_TRY(Sized(field, *list, n_rows));
    std::vector<std::vector<uint64_t>> out;
    for (const json& row : *list) {
      NM_TRY_VAR(std::vector<uint64_t> counts, Counts(field, row, n));
      out.push_back(std::move(counts));
    }
    return out;
  }

  Result<LoadHistogram> Histogram(const json& pairs, uint32_t chunk_tokens) const {
    if (!pairs.is_array()) return Wrong("loads", "wanted a list of [load, count]");
    LoadHistogram histogram;
    for (const json& pair : pairs) {
      NM_TRY(Sized("loads", pair, 2));
      NM_TRY_VAR(const uint64_t load, Count("loads", pair[0], chunk_tokens));
      NM_TRY_VAR(const uint64_t count, Count("loads", pair[1], kMaxCount));
      if (!histogram.empty() && load <= histogram.rbegin()->first) return Wrong("loads", "loads are not ascending");
      histogram.emplace_hint(histogram.end(), static_cast<uint32_t>(load), count);
    }
    return histogram;
  }

  Result<std::vector<std::vector<LoadHistogram>>> Loads(size_t n) const {
    NM_TRY_VAR(const json* list, List("loads"));
    NM_TRY(Sized("loads", *list, n == 0 ? 0 : stats_.chunk_tokens.size()));
    std::vector<std::vector<LoadHistogram>> out;
    for (const json& experts : *list) {
      NM_TRY(Sized("loads", experts, n));
      std::vector<LoadHistogram> histograms;
      for (const json& pairs : experts) {
        NM_TRY_VAR(LoadHistogram histogram, Histogram(pairs, stats_.chunk_tokens[out.size()]));
        histograms.push_back(std::move(histogram));
      }
      out.push_back(std::move(histograms));
    }
    return out;
  }

  Result<std::vector<double>> Norms(size_t n) const {
    NM_TRY_VAR(const json* list, List("mean_output_norm"));
    NM_TRY(Sized("mean_output_norm", *list, n));
    std::vector<double> out;
    for (const json& value : *list) {
      NM_TRY_VAR(const double number, Number("mean_output_norm", value));
      out.push_back(number);
    }
    return out;
  }

  // Absent counts (an empty list) stay empty: not every maker gathers them.
  Result<std::vector<uint32_t>> CoActivation(size_t n) const {
    NM_TRY_VAR(const json* list, List("co_activation"));
    if (list->empty()) return std::vector<uint32_t>();
    NM_TRY(Sized("co_activation", *list, n * (n + 1) / 2));
    std::vector<uint32_t> out(n * n);
    size_t next = 0;
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = a; b < n; ++b) {
        NM_TRY_VAR(const uint64_t count, Count("co_activation", (*list)[next++], UINT32_MAX));
        out[a * n + b] = out[b * n + a] = static_cast<uint32_t>(count);
      }
    }
    return out;
  }

  Result<ActivationRange> Range() const {
    const auto found = object_.find("range");
    if (found == object_.end() || !found->is_object()) return Wrong("range", "wanted an object");
    ActivationRange range;
    for (const ActivationStage& stage : kActivationStages) {
      const std::string path = fmt::format("range.{}", stage.name);
      const auto value = found->find(stage.name);
      if (value == found->end()) return Wrong(path, "missing");
      NM_TRY_VAR(const double number, Number(path, *value));
      range.*stage.value = static_cast<float>(std::min(number, static_cast<double>(FLT_MAX)));
    }
    return range;
  }

  const RoutingStats& stats_;
  std::string where_;
  const json& object_;
};

Result<std::string> Text(const json& document, std::string_view name, std::string_view field) {
  const auto found = document.find(field);
  if (found == document.end() || !found->is_string()) {
    return MakeError(Code::kCorruptFile, "{}: field '{}': wanted a string", name, field);
  }
  return found->get<std::string>().substr(0, kShownTextBytes);
}

Status ReadHead(const json& document, std::string_view name, RoutingStats& stats) {
  const JsonFields fields(document, name);
  NM_TRY_VAR(stats.model_name, Text(document, name, "model_name"));
  NM_TRY_VAR(stats.model_hash, Text(document, name, "model_hash"));
  NM_TRY_VAR(stats.n_layers, fields.Uint("n_layers", kMaxLayers));
  NM_TRY_VAR(stats.n_experts, fields.Uint("n_experts", kMaxExperts));
  NM_TRY_VAR(stats.top_k, fields.Uint("top_k", stats.n_experts));
  if (uint64_t{stats.n_layers} * stats.n_experts > kMaxTotalExperts) {
    return MakeError(Code::kCorruptFile, "{}: field 'n_experts': {} in {} layers, limit {} in all", name,
                     stats.n_experts, stats.n_layers, kMaxTotalExperts);
  }
  if (!fields.Has("chunk_tokens")) return MakeError(Code::kCorruptFile, "{}: field 'chunk_tokens': missing", name);
  NM_TRY_VAR(stats.chunk_tokens, fields.Uints("chunk_tokens", kMaxChunkLengths, kMaxContext));
  for (size_t i = 0; i < stats.chunk_tokens.size(); ++i) {
    if (stats.chunk_tokens[i] > (i == 0 ? 0 : stats.chunk_tokens[i - 1])) continue;
    return MakeError(Code::kCorruptFile, "{}: field 'chunk_tokens': not ascending at {}", name, stats.chunk_tokens[i]);
  }
  const auto n_tokens = document.find("n_tokens");
  if (n_tokens == document.end() || !n_tokens->is_number_unsigned() || n_tokens->get<uint64_t>() > kMaxCount) {
    return MakeError(Code::kCorruptFile, "{}: field 'n_tokens': wanted a whole number up to {}", name, kMaxCount);
  }
  stats.n_tokens = n_tokens->get<uint64_t>();
  if (!fields.Has("complete")) return MakeError(Code::kCorruptFile, "{}: field 'complete': missing", name);
  NM_TRY_VAR(stats.complete, fields.Bool("complete", true));
  const auto sources = document.find("sources");
  if (sources == document.end() || !sources->is_array() || sources->size() > kMaxSources) {
    return MakeError(Code::kCorruptFile, "{}: field 'sources': wanted a list of up to {} names", name, kMaxSources);
  }
  for (const json& source : *sources) {
    if (!source.is_string()) return MakeError(Code::kCorruptFile, "{}: field 'sources': wanted strings", name);
    stats.sources.push_back(source.get<std::string>());
  }
  return Ok{};
}

// A number beyond its cap is a lie about the model, so it makes the file corrupt and not merely unsupported.
Error AsCorrupt(Error error) {
  error.code = Code::kCorruptFile;
  return error;
}

}  // namespace

size_t RoutingStats::ChunkIndex(uint32_t tokens) const {
  const auto above = std::upper_bound(chunk_tokens.begin(), chunk_tokens.end(), tokens);
  return above == chunk_tokens.begin() ? 0 : static_cast<size_t>(above - chunk_tokens.begin()) - 1;
}

std::string ToJson(const RoutingStats& stats) {
  json layers = json::array();
  for (const LayerRouting& layer : stats.layers) layers.push_back(LayerToJson(layer, stats.n_experts));
  const json document{{"chunk_tokens", stats.chunk_tokens},
                      {"complete", stats.complete},
                      {"layers", std::move(layers)},
                      {"model_hash", stats.model_hash},
                      {"model_name", stats.model_name},
                      {"n_experts", stats.n_experts},
                      {"n_layers", stats.n_layers},
                      {"n_tokens", stats.n_tokens},
                      {"sources", stats.sources},
                      {"top_k", stats.top_k},
                      {"version", kStatsVersion}};
  // Names come from files and may hold anything; replacing keeps dump() from throwing.
  return document.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<RoutingStats> ParseRoutingStats(std::string_view text, std::string_view name) {
  const auto parsed = ParseJsonObject(text, name);
  if (!parsed.ok()) return AsCorrupt(parsed.error());
  const json& document = *parsed;
  const auto version = JsonFields(document, name).Uint("version", UINT32_MAX);
  if (!version.ok()) return AsCorrupt(version.error());
  if (*version != kStatsVersion) {
    return MakeError(Code::kUnsupported, "{}: statistics version {}, wanted {}: calibrate anew", name, *version,
                     kStatsVersion);
  }
  RoutingStats stats;
  if (const Status head = ReadHead(document, name, stats); !head.ok()) return AsCorrupt(head.error());
  const auto layers = document.find("layers");
  if (layers == document.end() || !layers->is_array() || layers->size() != stats.n_layers) {
    return MakeError(Code::kCorruptFile, "{}: field 'layers': wanted a list of {}", name, stats.n_layers);
  }
  for (const json& entry : *layers) {
    NM_TRY_VAR(LayerRouting layer, LayerReader(entry, name, stats.layers.size(), stats).Read());
    stats.layers.push_back(std::move(layer));
  }
  return stats;
}

const ActivationStage& LargestStage(const ActivationRange& range) {
  const ActivationStage* largest = kActivationStages;
  for (const ActivationStage& stage : kActivationStages) {
    if (range.*stage.value > range.*largest->value) largest = &stage;
  }
  return *largest;
}

Skew SkewOf(const LayerRouting& layer) {
  Skew skew;
  double total = 0, hottest = 0, entropy = 0;
  for (const uint64_t tokens : layer.tokens) {
    total += static_cast<double>(tokens);
    hottest = std::max(hottest, static_cast<double>(tokens));
    skew.unseen += tokens == 0;
  }
  if (total == 0) return skew;
  for (const uint64_t tokens : layer.tokens) {
    const double share = static_cast<double>(tokens) / total;
    if (share > 0) entropy -= share * std::log(share);
  }
  skew.hottest_over_mean = hottest * static_cast<double>(layer.tokens.size()) / total;
  skew.effective_experts = std::exp(entropy);
  return skew;
}

double PopularityDistance(std::span<const uint64_t> a, std::span<const uint64_t> b) {
  const auto total = [](std::span<const uint64_t> counts) {
    double sum = 0;
    for (const uint64_t count : counts) sum += static_cast<double>(count);
    return sum;
  };
  const double total_a = total(a), total_b = total(b);
  if (total_a == 0 || total_b == 0) return 1;
  double distance = 0;
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const double share_a = i < a.size() ? static_cast<double>(a[i]) / total_a : 0;
    const double share_b = i < b.size() ? static_cast<double>(b[i]) / total_b : 0;
    distance += std::fabs(share_a - share_b);
  }
  return distance / 2;
}

}  // namespace npumoe
