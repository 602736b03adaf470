// SPDX-License-Identifier: Apache-2.0
#include "model/json_fields.h"

#include <cmath>

#include "base/check.h"
#include "format/printable.h"

namespace npumoe {
namespace {

constexpr int kMaxDepth = 32;  // published configs nest three deep
constexpr size_t kShownValueBytes = 40;

// A value as an error message shows it. Containers are named, not printed: they may be huge.
std::string Shown(const nlohmann::json& value) {
  if (value.is_string()) return fmt::format("\"{}\"", Printable(value.get_ref<const std::string&>(), kShownValueBytes));
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_object()) return "an object";
  return Printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), kShownValueBytes);
}

}  // namespace

Result<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view name) {
  bool too_deep = false;
  const auto limit_depth = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json&) {
    const bool opens =
        event == nlohmann::json::parse_event_t::object_start || event == nlohmann::json::parse_event_t::array_start;
    if (opens && depth > kMaxDepth) too_deep = true;
    return !(opens && depth > kMaxDepth);  // false drops the value
  };
  nlohmann::json parsed = nlohmann::json::parse(text.begin(), text.end(), limit_depth, /*allow_exceptions=*/false);
  if (too_deep) return MakeError(Code::kUnsupported, "{}: nested more than {} deep", name, kMaxDepth);
  if (parsed.is_discarded()) return MakeError(Code::kCorruptFile, "{}: not valid JSON", name);
  if (!parsed.is_object()) return MakeError(Code::kCorruptFile, "{}: {}, wanted an object", name, Shown(parsed));
  return parsed;
}

std::string JsonFields::Where(std::string_view key) const { return fmt::format("{}: {}{}", name_, path_, key); }

const nlohmann::json* JsonFields::Find(std::string_view key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

Result<uint32_t> JsonFields::ToUint(const nlohmann::json& value, std::string_view key, uint32_t limit) const {
  const bool whole_float =
      value.is_number_float() && std::floor(value.get<double>()) == value.get<double>() && value.get<double>() < 0x1p53;
  if (!value.is_number_integer() && !whole_float) {
    return MakeError(Code::kCorruptFile, "{}: {}, wanted a whole number", Where(key), Shown(value));
  }
  const bool negative = value.is_number_unsigned() ? false
                        : whole_float              ? value.get<double>() < 0
                                                   : value.get<int64_t>() < 0;
  if (negative) return MakeError(Code::kCorruptFile, "{}: {}, wanted at least 0", Where(key), Shown(value));
  const uint64_t number = whole_float ? static_cast<uint64_t>(value.get<double>()) : value.get<uint64_t>();
  if (number > limit) return MakeError(Code::kUnsupported, "{}: {}, limit {}", Where(key), number, limit);
  return static_cast<uint32_t>(number);
}

Result<double> JsonFields::ToFloat(const nlohmann::json& value, std::string_view key) const {
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    return MakeError(Code::kCorruptFile, "{}: {}, wanted a number", Where(key), Shown(value));
  }
  return value.get<double>();
}

Result<uint32_t> JsonFields::Uint(std::string_view key, uint32_t limit) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return MakeError(Code::kCorruptFile, "{}: missing", Where(key));
  return ToUint(*value, key, limit);
}

Result<uint32_t> JsonFields::Uint(std::string_view key, uint32_t limit, uint32_t fallback) const {
  return Has(key) ? Uint(key, limit) : fallback;
}

Result<double> JsonFields::Float(std::string_view key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return MakeError(Code::kCorruptFile, "{}: missing", Where(key));
  return ToFloat(*value, key);
}

Result<double> JsonFields::Float(std::string_view key, double fallback) const {
  return Has(key) ? Float(key) : fallback;
}

Result<bool> JsonFields::Bool(std::string_view key, bool fallback) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    return MakeError(Code::kCorruptFile, "{}: {}, wanted true or false", Where(key), Shown(*value));
  }
  return value->get<bool>();
}

Result<std::string> JsonFields::String(std::string_view key, std::string_view fallback) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) return MakeError(Code::kCorruptFile, "{}: {}, wanted a string", Where(key), Shown(*value));
  return value->get<std::string>();
}

Result<std::vector<float>> JsonFields::Floats(std::string_view key, size_t max_size) const {
  std::vector<float> out;
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return out;
  if (!value->is_array()) return MakeError(Code::kCorruptFile, "{}: {}, wanted an array", Where(key), Shown(*value));
  if (value->size() > max_size) {
    return MakeError(Code::kUnsupported, "{}: {} elements, limit {}", Where(key), value->size(), max_size);
  }
  for (const nlohmann::json& element : *value) {
    NM_TRY_VAR(const double number, ToFloat(element, key));
    out.push_back(static_cast<float>(number));
  }
  return out;
}

Result<std::vector<uint32_t>> JsonFields::Uints(std::string_view key, size_t max_size, uint32_t limit) const {
  std::vector<uint32_t> out;
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return out;
  if (!value->is_array()) return MakeError(Code::kCorruptFile, "{}: {}, wanted an array", Where(key), Shown(*value));
  if (value->size() > max_size) {
    return MakeError(Code::kUnsupported, "{}: {} elements, limit {}", Where(key), value->size(), max_size);
  }
  for (const nlohmann::json& element : *value) {
    NM_TRY_VAR(const uint32_t number, ToUint(element, key, limit));
    out.push_back(number);
  }
  return out;
}

Result<JsonFields> JsonFields::Object(std::string_view key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return MakeError(Code::kCorruptFile, "{}: missing", Where(key));
  if (!value->is_object()) return MakeError(Code::kCorruptFile, "{}: {}, wanted an object", Where(key), Shown(*value));
  return JsonFields(*value, name_, fmt::format("{}{}.", path_, key));
}

}  // namespace npumoe
