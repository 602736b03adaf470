// SPDX-License-Identifier: Apache-2.0
// Any bytes as files of multiple-choice items and as a line of an item log: an error in one line, or items that hold
// what scoring relies on.
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "eval/choice_items.h"
#include "eval/item_record.h"

namespace npumoe {
namespace {

void CheckMessage(std::string_view message) {
  for (const char c : message) NM_CHECK(static_cast<uint8_t>(c) >= 0x20 && c != 0x7f);
}

void CheckItems(const Result<std::vector<ChoiceItem>>& items) {
  if (!items.ok()) return CheckMessage(items.error().message);
  NM_CHECK(!items->empty());
  for (const ChoiceItem& item : *items) {
    NM_CHECK(!item.context.empty() && item.endings.size() >= 2 && item.endings.size() <= kMaxEndings);
    NM_CHECK(item.gold < item.endings.size());
    for (const auto& ending : item.endings) NM_CHECK(!ending.empty());
  }
  NM_CHECK(!PromptOf(*items, items->size() - 1, items->size() - 1).empty());
}

void CheckRecord(const Result<ItemRecord>& record) {
  if (!record.ok()) return CheckMessage(record.error().message);
  NM_CHECK(record->is_choice() ? record->gold < record->log_probs.size()
                               : record->n_found <= record->references.size());
  // What was read is written as it was.
  const auto again = ParseItemRecord(ToJsonLine(*record), "again");
  NM_CHECK(again.ok() && ToJsonLine(*again) == ToJsonLine(*record));
}

}  // namespace
}  // namespace npumoe

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  npumoe::CheckItems(npumoe::ParseHellaSwag(text, "input"));
  npumoe::CheckItems(npumoe::ParseBoolQ(text, "input"));
  npumoe::CheckItems(npumoe::ParsePiqa(text, "input"));
  npumoe::CheckRecord(npumoe::ParseItemRecord(text.substr(0, text.find('\n')), "input"));
  return 0;
}
