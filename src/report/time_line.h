// SPDX-License-Identifier: Apache-2.0
// Who is busy when: one band a plan, one track a unit.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "npumoe/simulate.h"

namespace npumoe {

struct TimeBand {
  std::string title;
  std::vector<SimulatedZone> zones;
};

// Every band has its own scale, said at its axis.
std::string DrawTimeLine(const std::vector<TimeBand>& bands, std::string_view title);

}  // namespace npumoe
