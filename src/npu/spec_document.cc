// SPDX-License-Identifier: Apache-2.0
#include "npu/spec_document.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace npumoe {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSpecVersion = 1;

std::string StringAt(const Json& json, const char* name) {
  const auto at = json.find(name);
  return at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
}

}  // namespace

std::string MeasuredSpecText(const NpuSpec& spec, std::string_view chip, std::string_view os_version) {
  Json json = {{"version", kSpecVersion}, {"npu", spec.name}, {"chip", chip}, {"os", os_version}, {"numbers", Json::object()}};
  for (const MeasurableField& field : MeasurableFields()) {
    const Sourced& number = spec.*field.field;
    if (!number.source.starts_with("measured")) continue;
    json["numbers"][std::string(field.name)] = {{"value", number.value}, {"source", number.source}};
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Status ApplyMeasuredSpec(std::string_view text, std::string_view name, std::string_view chip,
                         std::string_view os_version, NpuSpec& spec) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("numbers") || !json["numbers"].is_object()) {
    return MakeError(Code::kCorruptFile, "{}: not a measured NPU spec", name);
  }
  if (const auto version = json.find("version"); version == json.end() || *version != kSpecVersion) {
    return MakeError(Code::kCorruptFile, "{}: version {}, wanted {}", name,
                     version == json.end() ? "missing" : version->dump().substr(0, 20), kSpecVersion);
  }
  for (const auto& [field, wanted] : {std::pair("chip", chip), std::pair("os", os_version)}) {
    const std::string got = StringAt(json, field);
    if (got != wanted) {
      return MakeError(Code::kInvalidArgument, "{}: measured on {} '{}', this is '{}'", name, field, got, wanted);
    }
  }
  NpuSpec replaced = spec;
  for (const auto& [key, number] : json["numbers"].items()) {
    const MeasurableField* found = nullptr;
    for (const MeasurableField& field : MeasurableFields()) found = field.name == key ? &field : found;
    if (found == nullptr) return MakeError(Code::kCorruptFile, "{}: unknown number '{}'", name, key);
    const bool is_number = number.is_object() && number.contains("value") && number["value"].is_number();
    const double value = is_number ? number["value"].get<double>() : 0;
    if (!(value > 0) || !std::isfinite(value)) {
      return MakeError(Code::kCorruptFile, "{}: {}: wanted a positive number", name, key);
    }
    const std::string source = StringAt(number, "source");
    replaced.*found->field = {value, source.starts_with("measured") ? source : "measured: " + source};
  }
  spec = std::move(replaced);
  return Ok{};
}

}  // namespace npumoe
