// SPDX-License-Identifier: Apache-2.0
#include "format/json_reader.h"

#include "format/printable.h"

namespace npumoe {

Result<Json> ParseJson(std::string_view text, std::string_view subject) {
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& error) {
    return MakeError(Code::kCorruptFile, "{}: JSON is broken at byte {} of {}", subject, error.byte, text.size());
  } catch (const Json::exception&) {  // a number out of range
    return MakeError(Code::kCorruptFile, "{}: JSON with a number out of range", subject);
  }
}

Result<std::optional<JsonField>> JsonField::Find(std::string_view key) const {
  if (!value_->is_object()) return Corrupt("is no object");
  const auto it = value_->find(key);
  if (it == value_->end() || it->is_null()) return std::optional<JsonField>();
  return std::optional(JsonField(&*it, path_ + (path_.ends_with(": ") ? "" : ".") + Printable(key)));
}

Result<JsonField> JsonField::At(std::string_view key) const {
  NM_TRY_VAR(auto field, Find(key));
  if (!field) return Corrupt("'{}' is missing", Printable(key));
  return *std::move(field);
}

JsonField JsonField::Item(size_t index) const { return {&(*value_)[index], fmt::format("{}[{}]", path_, index)}; }

Result<std::string> JsonField::AsString() const {
  if (!value_->is_string()) return Corrupt("is no string");
  return value_->get_ref<const std::string&>();
}

Result<std::string> JsonField::String(std::string_view key) const {
  NM_TRY_VAR(const JsonField field, At(key));
  return field.AsString();
}

Result<std::string> JsonField::StringOr(std::string_view key, std::string_view absent) const {
  NM_TRY_VAR(const auto field, Find(key));
  if (!field) return std::string(absent);
  return field->AsString();
}

Result<bool> JsonField::BoolOr(std::string_view key, bool absent) const {
  NM_TRY_VAR(const auto field, Find(key));
  if (!field) return absent;
  if (!field->value().is_boolean()) return field->Corrupt("is no bool");
  return field->value().get<bool>();
}

Result<JsonField> JsonField::Array(std::string_view key) const {
  NM_TRY_VAR(JsonField field, At(key));
  if (!field.value().is_array()) return field.Corrupt("is no array");
  return field;
}

Result<size_t> JsonField::Index(size_t limit) const {
  if (!value_->is_number_unsigned()) return Corrupt("is no non-negative integer");
  const auto number = value_->get<uint64_t>();
  if (number >= limit) return Corrupt("is {}, must be less than {}", number, limit);
  return static_cast<size_t>(number);
}

}  // namespace npumoe
