// SPDX-License-Identifier: Apache-2.0
// A simulation's report as JSON, for --json, --sweep and the HTML report.
#pragma once

#include <nlohmann/json.hpp>

#include "npumoe/simulate.h"

namespace npumoe {

// With `details` also the tier map, popularity and one layer's zones.
nlohmann::ordered_json ToJson(const SimulateReport& report, bool details);

}  // namespace npumoe
