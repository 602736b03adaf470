// SPDX-License-Identifier: Apache-2.0
// All simulations that a report draws from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/report.h"

namespace npumoe {

// All placements of one model at one chunk length and the asked weight format; those whose experts are in one graph or
// all on the NPU for the other format; `ours` alone for another objective than time, in the asked format.
struct Simulation {
  std::string model;
  uint32_t chunk_tokens = 0;
  std::string expert_weights, objective;
  SimulateReport report;
};

class Simulations {
 public:
  // On o.n_threads threads; what comes out does not depend on how many.
  static Result<Simulations> Run(const ReportOptions& o, const ProgressFn& progress);

  const std::vector<Simulation>& all() const { return all_; }
  // Chunk lengths, ascending.
  const std::vector<uint32_t>& chunks() const { return chunks_; }
  // The one of objective time; it must exist.
  const SimulateReport& Of(std::string_view model, uint32_t chunk_tokens, std::string_view expert_weights) const;

 private:
  std::vector<Simulation> all_;
  std::vector<uint32_t> chunks_;
};

// Of the chunk length and the weight format that were asked for.
const SimulateReport& ReportOf(const ReportOptions& o, const Simulations& simulations, const std::string& model);

// Null where the report lacks it.
const SimulatedPlacement* Find(const SimulateReport& report, std::string_view placement);

}  // namespace npumoe
