// SPDX-License-Identifier: Apache-2.0
#include "moe/spare_capacities.h"

#include <algorithm>

namespace npumoe {
namespace {

constexpr uint32_t kShortBatchParts[] = {2, 4, 8};
constexpr uint32_t kDriftEighths[] = {10, 12};  // of a group's largest capacity: prompts unlike the calibration's

}  // namespace

void AddSpareCapacities(uint32_t multiple, uint32_t max_capacity, std::vector<uint32_t>& capacities) {
  const auto rounded = [&](uint64_t rows) {
    return static_cast<uint32_t>(std::min<uint64_t>((rows + multiple - 1) / multiple * multiple, UINT32_MAX));
  };
  const uint32_t typical = capacities[(capacities.size() - 1) / 2];
  for (const uint32_t part : kShortBatchParts) {
    const uint32_t capacity = rounded(std::max(typical / part, 1u));
    if (capacity < capacities[0]) capacities.insert(capacities.begin(), capacity);
  }
  const uint32_t largest = capacities.back();
  for (const uint32_t eighths : kDriftEighths) {
    const uint32_t capacity = std::min(rounded(uint64_t{largest} * eighths / 8), max_capacity);
    if (capacity > capacities.back()) capacities.push_back(capacity);
  }
}

}  // namespace npumoe
