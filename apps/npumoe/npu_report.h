// SPDX-License-Identifier: Apache-2.0
// What a run on an NPU tells, as text and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "npumoe/npu.h"

namespace npumoe {

// One line: where the rows went, the simulated time to the first token and the energy.
std::string NpuSummary(const RunReport& report);

// A table of both stages, per layer and in total, then the fallbacks with their reasons.
std::string FormatNpuReport(const RunReport& report);

// Everything in the report; "clock" says whether its times are simulated and on which machine.
nlohmann::ordered_json NpuReportJson(const RunReport& report);

}  // namespace npumoe
