// SPDX-License-Identifier: Apache-2.0
// Shares with intervals.
#pragma once

#include <span>

#include "npumoe/eval.h"

namespace npumoe {

// Mean of values in 0..1, one an item, with Wilson's interval for as many yes-or-no items as would have the spread that
// the values have; of zeros and ones it is WilsonShare.
Share MeanShare(std::span<const double> values);

}  // namespace npumoe
