// SPDX-License-Identifier: Apache-2.0
// Typed reads from a JSON object of unknown quality: every error names file, field, value and limit.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

// The text as an object; nesting is limited, and anything else (an array, broken JSON) is kCorruptFile.
Result<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view name);

// Reads members of one object. A member that is null counts as absent. Borrows the object; `name` (the file) and `path`
// ("rope_scaling.") open the error messages.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string_view name, std::string_view path = {})
      : object_(&object), name_(name), path_(path) {}

  const nlohmann::json* Find(std::string_view key) const;  // nullptr when absent or null
  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  // Without a fallback, an absent member is kCorruptFile. Whole numbers written as 4096.0 are accepted.
  Result<uint32_t> Uint(std::string_view key, uint32_t limit) const;
  Result<uint32_t> Uint(std::string_view key, uint32_t limit, uint32_t fallback) const;
  Result<double> Float(std::string_view key) const;
  Result<double> Float(std::string_view key, double fallback) const;
  Result<bool> Bool(std::string_view key, bool fallback) const;
  Result<std::string> String(std::string_view key, std::string_view fallback) const;
  // Empty when absent; more than `max_size` elements are kUnsupported.
  Result<std::vector<float>> Floats(std::string_view key, size_t max_size) const;
  Result<std::vector<uint32_t>> Uints(std::string_view key, size_t max_size, uint32_t limit) const;
  // The member object, or kCorruptFile when it is something else.
  Result<JsonFields> Object(std::string_view key) const;

  const std::string& name() const { return name_; }
  std::string Where(std::string_view key) const;  // "config.json: rope_scaling.factor"

 private:
  Result<uint32_t> ToUint(const nlohmann::json& value, std::string_view key, uint32_t limit) const;
  Result<double> ToFloat(const nlohmann::json& value, std::string_view key) const;

  const nlohmann::json* object_;
  std::string name_, path_;
};

}  // namespace npumoe
