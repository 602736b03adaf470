// SPDX-License-Identifier: Apache-2.0
#include "eval/choice_items.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "format/printable.h"
#include "model/json_fields.h"

namespace npumoe {
namespace {

constexpr size_t kHellaSwagEndings = 4;
constexpr std::string_view kBlank = " \t\r\n";

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

// Lines one after another, counted from 1.
class Lines {
 public:
  Lines(std::string_view text, std::string_view name) : rest_(text), name_(name) {}

  bool at_end() const { return rest_.find_first_not_of(kBlank) == std::string_view::npos; }
  std::string Where() const { return fmt::format("{}: line {}", name_, number_); }

  // Without blanks at both ends. Precondition: not at_end().
  Result<std::string_view> Next() {
    ++number_;
    const size_t end = rest_.find('\n');
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    if (line.size() > kMaxLineBytes) {
      return MakeError(Code::kCorruptFile, "{}: {} bytes, limit {}", Where(), line.size(), kMaxLineBytes);
    }
    return Trimmed(line);
  }

 private:
  std::string_view rest_, name_;
  size_t number_ = 0;
};

// What was read so far is an item of that file.
Status CheckItem(const ChoiceItem& item, const std::string& where) {
  if (item.context.empty()) return MakeError(Code::kCorruptFile, "{}: the context is empty", where);
  if (item.endings.size() < 2 || item.endings.size() > kMaxEndings) {
    return MakeError(Code::kCorruptFile, "{}: {} endings, wanted 2 to {}", where, item.endings.size(), kMaxEndings);
  }
  for (size_t i = 0; i < item.endings.size(); ++i) {
    if (item.endings[i].empty()) return MakeError(Code::kCorruptFile, "{}: ending {} is empty", where, i);
  }
  if (item.gold < item.endings.size()) return Ok{};
  return MakeError(Code::kCorruptFile, "{}: the right ending is number {}, wanted 0 to {}", where, item.gold,
                   item.endings.size() - 1);
}

Result<std::string> Text(const JsonFields& fields, const char* key) {
  if (!fields.Has(key)) return MakeError(Code::kCorruptFile, "{}: missing", fields.Where(key));
  NM_TRY_VAR(const std::string text, fields.String(key, ""));
  return std::string(Trimmed(text));
}

// {"query", "choices", "gold"}: how benchmark suites write any multiple-choice task.
Result<ChoiceItem> FromChoices(const JsonFields& fields) {
  ChoiceItem item;
  NM_TRY_VAR(const std::string query, Text(fields, "query"));
  item.context = query + "\nAnswer:";
  const nlohmann::json* const choices = fields.Find("choices");
  if (choices == nullptr || !choices->is_array() || choices->size() > kMaxEndings) {
    return MakeError(Code::kCorruptFile, "{}: wanted a list of at most {} texts", fields.Where("choices"), kMaxEndings);
  }
  for (const nlohmann::json& choice : *choices) {
    if (!choice.is_string()) return MakeError(Code::kCorruptFile, "{}: wanted texts", fields.Where("choices"));
    item.endings.emplace_back(Trimmed(choice.get_ref<const std::string&>()));
  }
  NM_TRY_VAR(item.gold, fields.Uint("gold", kMaxEndings));
  return item;
}

Result<ChoiceItem> FromBoolQ(const JsonFields& fields) {
  NM_TRY_VAR(const std::string passage, Text(fields, "passage"));
  NM_TRY_VAR(std::string question, Text(fields, "question"));
  if (!question.ends_with('?')) question += '?';
  if (!fields.Has("answer")) return MakeError(Code::kCorruptFile, "{}: missing", fields.Where("answer"));
  NM_TRY_VAR(const bool answer, fields.Bool("answer", false));
  return ChoiceItem{"Passage: " + passage + "\nQuestion: " + question + "\nAnswer:", {"no", "yes"}, answer ? 1u : 0u};
}

Result<ChoiceItem> FromPiqa(const JsonFields& fields) {
  NM_TRY_VAR(const std::string goal, Text(fields, "goal"));
  NM_TRY_VAR(std::string first, Text(fields, "sol1"));
  NM_TRY_VAR(std::string second, Text(fields, "sol2"));
  NM_TRY_VAR(const uint32_t label, fields.Uint("label", kMaxEndings));
  return ChoiceItem{"Question: " + goal + "\nAnswer:", {std::move(first), std::move(second)}, label};
}

using FromFields = Result<ChoiceItem> (*)(const JsonFields&);

// `own` reads the data set's own fields, of which `own_key` is one.
Result<std::vector<ChoiceItem>> ParseJsonLines(std::string_view text, std::string_view name, const char* own_key,
                                               FromFields own) {
  std::vector<ChoiceItem> items;
  Lines lines(text, name);
  while (!lines.at_end()) {
    NM_TRY_VAR(const std::string_view line, lines.Next());
    if (line.empty()) continue;
    const std::string where = lines.Where();
    NM_TRY_VAR(const nlohmann::json json, ParseJsonObject(line, where));
    const JsonFields fields(json, where);
    NM_TRY_VAR(ChoiceItem item, fields.Has(own_key) ? own(fields) : FromChoices(fields));
    NM_TRY(CheckItem(item, where));
    items.push_back(std::move(item));
  }
  if (items.empty()) return MakeError(Code::kCorruptFile, "{}: no items", name);
  return items;
}

}  // namespace

Result<std::vector<ChoiceItem>> ParseHellaSwag(std::string_view text, std::string_view name) {
  std::vector<ChoiceItem> items;
  Lines lines(text, name);
  while (!lines.at_end()) {
    ChoiceItem item;
    NM_TRY_VAR(item.context, lines.Next());
    const std::string where = lines.Where();
    if (item.context.empty()) return MakeError(Code::kCorruptFile, "{}: the context is empty", where);
    if (lines.at_end()) return MakeError(Code::kCorruptFile, "{}: an item ends after its context", where);
    NM_TRY_VAR(const std::string_view gold, lines.Next());
    const auto [end, error] = std::from_chars(gold.data(), gold.data() + gold.size(), item.gold);
    if (error != std::errc() || end != gold.data() + gold.size()) {
      return MakeError(Code::kCorruptFile, "{}: '{}', wanted the number of the right ending", lines.Where(),
                       Printable(gold, 40));
    }
    for (size_t i = 0; i < kHellaSwagEndings; ++i) {
      if (lines.at_end()) {
        return MakeError(Code::kCorruptFile, "{}: the item of it has {} endings, wanted {}", where, i,
                         kHellaSwagEndings);
      }
      NM_TRY_VAR(item.endings.emplace_back(), lines.Next());
    }
    NM_TRY(CheckItem(item, where));
    items.push_back(std::move(item));
  }
  if (items.empty()) return MakeError(Code::kCorruptFile, "{}: no items", name);
  return items;
}

Result<std::vector<ChoiceItem>> ParseBoolQ(std::string_view text, std::string_view name) {
  return ParseJsonLines(text, name, "passage", FromBoolQ);
}

Result<std::vector<ChoiceItem>> ParsePiqa(std::string_view text, std::string_view name) {
  return ParseJsonLines(text, name, "goal", FromPiqa);
}

std::string PromptOf(const std::vector<ChoiceItem>& items, size_t item, size_t n_shots) {
  NM_CHECK(item < items.size() && n_shots < items.size());
  std::string prompt;
  for (size_t shot = 0, taken = 0; taken < n_shots; ++shot) {
    if (shot == item) continue;
    prompt += items[shot].context + " " + items[shot].endings[items[shot].gold] + "\n\n";
    ++taken;
  }
  return prompt + items[item].context;
}

}  // namespace npumoe
