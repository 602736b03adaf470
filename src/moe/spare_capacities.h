// SPDX-License-Identifier: Apache-2.0
// Capacities that a group gets for batches unlike those it was planned for.
#pragma once

#include <cstdint>
#include <vector>

namespace npumoe {

// Functions of one program share its weights, so that capacities for batches that are a half, a quarter or an eighth
// full, or fuller than any that was calibrated, cost nothing but their compilation: the searched menu knows full
// batches as they were calibrated only. `capacities`: ascending, not empty; multiples of `multiple` up to
// `max_capacity` are added.
void AddSpareCapacities(uint32_t multiple, uint32_t max_capacity, std::vector<uint32_t>& capacities);

}  // namespace npumoe
