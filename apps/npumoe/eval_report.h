// SPDX-License-Identifier: Apache-2.0
// What `npumoe eval` prints on stdout.
#pragma once

#include <string>

#include "npumoe/engine.h"
#include "npumoe/eval.h"

namespace npumoe {

// Tables and one JSON object. Whatever an NPU had a part in names it, and says so when it was simulated.
std::string EvalText(const EvalReport& report, const RunIdentity& identity);
std::string EvalJson(const EvalReport& report, const RunIdentity& identity);
std::string TaskText(const TaskReport& report, const RunIdentity& identity);
std::string TaskJson(const TaskReport& report, const RunIdentity& identity, const TaskOptions& options);

}  // namespace npumoe
