// SPDX-License-Identifier: Apache-2.0
// Typed look-ups in parsed JSON whose errors name the file and the field.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "npumoe/result.h"

namespace npumoe {

using Json = nlohmann::json;

// The document, or an error that names `subject` and the byte where it is broken.
Result<Json> ParseJson(std::string_view text, std::string_view subject);

// A place in a document: a value and the path to it ("model.json: model.merges"). Borrows the value.
class JsonField {
 public:
  JsonField(const Json* value, std::string path) : value_(value), path_(std::move(path)) {}

  const Json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  // The path without the separator that the path of a whole document ends with.
  std::string_view subject() const {
    const std::string_view path = path_;
    return path.ends_with(": ") ? path.substr(0, path.size() - 2) : path;
  }

  template <typename... Args>
  Error Corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return MakeError(Code::kCorruptFile, "{}: {}", subject(), fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  Error Unsupported(fmt::format_string<Args...> format, Args&&... args) const {
    return MakeError(Code::kUnsupported, "{}: {}", subject(), fmt::format(format, std::forward<Args>(args)...));
  }

  // The member of an object, or nullopt if it is absent or null. kCorruptFile if this is no object.
  Result<std::optional<JsonField>> Find(std::string_view key) const;
  // The same, but absent or null is kCorruptFile.
  Result<JsonField> At(std::string_view key) const;
  JsonField Item(size_t index) const;  // of an array, index < value().size()

  Result<std::string> String(std::string_view key) const;
  Result<std::string> StringOr(std::string_view key, std::string_view absent) const;
  Result<bool> BoolOr(std::string_view key, bool absent) const;
  Result<JsonField> Array(std::string_view key) const;

  // This value as a non-negative integer below `limit`.
  Result<size_t> Index(size_t limit) const;
  Result<std::string> AsString() const;

 private:
  const Json* value_;
  std::string path_;
};

}  // namespace npumoe
