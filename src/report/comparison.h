// SPDX-License-Identifier: Apache-2.0
// Published figures beside what simulations of the same plans come to.
#pragma once

#include "report/page.h"
#include "report/simulations.h"

namespace npumoe {

// The published value as text: "1.32 to 5.55x", "35.35 %".
std::string ValueText(const PublishedFigure& figure);
// The one of that key; it must exist.
const PublishedFigure& Published(std::string_view key);

// Seconds of one stage; 0 if there is none of that name.
double StageSeconds(const SimulatedPlacement& placement, std::string_view stage);

// One row a published figure, with the range over the models of `o` beside it.
Table CompareWithPublished(const ReportOptions& o, const Simulations& simulations);

}  // namespace npumoe
