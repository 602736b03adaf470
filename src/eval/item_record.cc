// SPDX-License-Identifier: Apache-2.0
#include "eval/item_record.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/check.h"
#include "eval/choice_items.h"
#include "model/json_fields.h"

namespace npumoe {
namespace {

constexpr size_t kMaxStrings = 1024;

// A member as a list of numbers or strings; absent is empty.
template <typename T>
Status ReadList(const JsonFields& fields, const char* key, std::vector<T>& out) {
  const nlohmann::json* const list = fields.Find(key);
  if (list == nullptr) return Ok{};
  if (!list->is_array() || list->size() > kMaxStrings) {
    return MakeError(Code::kCorruptFile, "{}: wanted a list of at most {}", fields.Where(key), kMaxStrings);
  }
  for (const nlohmann::json& value : *list) {
    bool good = false;
    if constexpr (std::is_same_v<T, std::string>) {
      good = value.is_string();
    } else if constexpr (std::is_same_v<T, double>) {
      good = value.is_number();
    } else {
      good = value.is_number_unsigned() && value.template get<uint64_t>() <= UINT32_MAX;
    }
    if (!good) return MakeError(Code::kCorruptFile, "{}: an element is of the wrong kind", fields.Where(key));
    out.push_back(value.template get<T>());
  }
  return Ok{};
}

Result<uint64_t> Count(const JsonFields& fields, const char* key) {
  const nlohmann::json* const value = fields.Find(key);
  if (value == nullptr) return uint64_t{0};
  if (!value->is_number_unsigned()) return MakeError(Code::kCorruptFile, "{}: wanted a count", fields.Where(key));
  return value->get<uint64_t>();
}

Result<std::optional<double>> Margin(const JsonFields& fields, const char* key) {
  if (!fields.Has(key)) return std::optional<double>{};
  NM_TRY_VAR(const double nats, fields.Float(key));
  if (!(nats >= 0)) return MakeError(Code::kCorruptFile, "{}: {}, wanted 0 or more", fields.Where(key), nats);
  return std::optional<double>{nats};
}

Status CheckSizes(const ItemRecord& record, std::string_view name) {
  const size_t n = record.log_probs.size();
  const bool has_exact = !record.exact_log_probs.empty();
  const bool choice = n >= 2 && n <= kMaxEndings && record.n_tokens.size() == n && record.n_characters.size() == n &&
                      record.gold < n && (!has_exact || record.exact_log_probs.size() == n);
  const bool retrieval = !record.references.empty() && !record.answers.empty() &&
                         record.n_found <= record.references.size() && record.n_exact_found <= record.references.size();
  if ((record.is_choice() && choice) || (!record.is_choice() && n == 0 && retrieval)) return Ok{};
  return MakeError(Code::kCorruptFile, "{}: not a finished item: its lists do not fit together", name);
}

}  // namespace

std::string ToJsonLine(const ItemRecord& record) {
  nlohmann::ordered_json json{{"item", record.item}};
  if (record.is_choice()) {
    json["gold"] = record.gold;
    json["log_probs"] = record.log_probs;
    if (!record.exact_log_probs.empty()) json["exact_log_probs"] = record.exact_log_probs;
    json["n_tokens"] = record.n_tokens;
    json["n_characters"] = record.n_characters;
    if (record.is_cut) json["is_cut"] = true;
  } else {
    json["references"] = record.references;
    json["answers"] = record.answers;
    json["n_found"] = record.n_found;
    if (!record.exact_answers.empty()) {
      json["exact_answers"] = record.exact_answers;
      json["n_exact_found"] = record.n_exact_found;
      if (record.exact_margin) json["exact_margin"] = *record.exact_margin;
      if (record.lost_margin) json["lost_margin"] = *record.lost_margin;
    }
  }
  if (record.expert_rows > 0) {
    json["expert_rows"] = record.expert_rows;
    json["rows_dropped"] = record.rows_dropped;
    json["rows_rerouted"] = record.rows_rerouted;
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<ItemRecord> ParseItemRecord(std::string_view line, std::string_view name) {
  NM_TRY_VAR(const nlohmann::json json, ParseJsonObject(line, name));
  const JsonFields fields(json, name);
  if (!fields.Has("item")) return MakeError(Code::kCorruptFile, "{}: not a finished item: no 'item'", name);
  ItemRecord record;
  NM_TRY_VAR(record.item, Count(fields, "item"));
  NM_TRY_VAR(record.gold, fields.Uint("gold", kMaxEndings, 0));
  NM_TRY(ReadList(fields, "log_probs", record.log_probs));
  NM_TRY(ReadList(fields, "exact_log_probs", record.exact_log_probs));
  NM_TRY(ReadList(fields, "n_tokens", record.n_tokens));
  NM_TRY(ReadList(fields, "n_characters", record.n_characters));
  NM_TRY_VAR(record.is_cut, fields.Bool("is_cut", false));
  NM_TRY(ReadList(fields, "references", record.references));
  NM_TRY(ReadList(fields, "answers", record.answers));
  NM_TRY(ReadList(fields, "exact_answers", record.exact_answers));
  NM_TRY_VAR(record.n_found, fields.Uint("n_found", UINT32_MAX, 0));
  NM_TRY_VAR(record.n_exact_found, fields.Uint("n_exact_found", UINT32_MAX, 0));
  NM_TRY_VAR(record.exact_margin, Margin(fields, "exact_margin"));
  NM_TRY_VAR(record.lost_margin, Margin(fields, "lost_margin"));
  NM_TRY_VAR(record.expert_rows, Count(fields, "expert_rows"));
  NM_TRY_VAR(record.rows_dropped, Count(fields, "rows_dropped"));
  NM_TRY_VAR(record.rows_rerouted, Count(fields, "rows_rerouted"));
  NM_TRY(CheckSizes(record, name));
  return record;
}

}  // namespace npumoe
