// SPDX-License-Identifier: Apache-2.0
// What the tests of simulations share.
#pragma once

#include <string>

#include "npumoe/simulate.h"

namespace npumoe {

inline SimulateOptions TestOptions(const std::string& model) {
  SimulateOptions options;
  options.model = model;
  options.routing = "zipf:0.6,0.3";
  options.n_seeds = 2;
  options.expert_weights = options.attention_weights = "int8";
  return options;
}

}  // namespace npumoe
