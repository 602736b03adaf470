// SPDX-License-Identifier: Apache-2.0
// The figures of a report, each with its caption and its numbers.
#pragma once

#include <string>
#include <string_view>

#include "report/page.h"
#include "report/simulations.h"

namespace npumoe {

// "simulated on m2-max (Apple M2 Max); 4096 prompt tokens, chunk 256, ..."
std::string SettingText(const ReportOptions& o, const Simulations& simulations);

// `model` for the title of a drawing: of a long path the end.
std::string ShortName(std::string_view model);

// Time, energy and CPU of the paper's placements and ours.
void AddPlacementBars(const ReportOptions& o, const Simulations& simulations, Page& page);
// The paper's steps one after the other, and ours.
void AddAblation(const ReportOptions& o, const Simulations& simulations, Page& page);
// Padding and dropped assignments by chunk length.
void AddShares(const ReportOptions& o, const Simulations& simulations, Page& page);
// Popularity of experts, and which capacity each got.
void AddMaps(const ReportOptions& o, const Simulations& simulations, Page& page);
// One layer of the paper's plan and of ours.
void AddTimeLines(const ReportOptions& o, const Simulations& simulations, Page& page);
// All plans by time and energy.
void AddPareto(const ReportOptions& o, const Simulations& simulations, Page& page);

}  // namespace npumoe
