// SPDX-License-Identifier: Apache-2.0
// What people want to know of RoutingStats.
#pragma once

#include "moe/routing_stats.h"
#include "npumoe/calibrate.h"

namespace npumoe {

// Everything but `json`; warnings are those that the statistics themselves give rise to.
CalibrationReport DescribeStats(const RoutingStats& stats);

}  // namespace npumoe
