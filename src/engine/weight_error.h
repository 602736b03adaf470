// SPDX-License-Identifier: Apache-2.0
// What a weight format does to the outputs of a model's own layers on real rows, measured.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/weights.h"
#include "moe/plan.h"
#include "npumoe/plan.h"

namespace npumoe {

inline constexpr size_t kWeightFormatCount = 5;
inline constexpr std::array<WeightFormat, kWeightFormatCount> kWeightFormats{
    WeightFormat::kFp16, WeightFormat::kInt8, WeightFormat::kLut8, WeightFormat::kLut6, WeightFormat::kLut4};

// Root of the sum of squared differences over that of squared values, of outputs in f32 on the CPU and in fp16 through
// the very graphs that a plan makes. Infinite when fp16 could not hold an output.
struct RelativeError {
  double rms = 0;    // root mean square over the samples
  double worst = 0;  // of one sample
};

struct WeightErrors {
  uint32_t n_tokens = 0;
  std::vector<uint32_t> layers;                             // looked at
  uint32_t n_experts = 0;                                   // samples: experts of all those layers; 0 in a dense model
  std::array<RelativeError, kWeightFormatCount> attention;  // by format: what an attention stage adds to the residual
  std::array<RelativeError, kWeightFormatCount> experts;    // what an expert gives, all projections in the format
  std::array<RelativeError, kWeightFormatCount> gate_up, down;  // the same, the other projections in fp16
};

// Runs the first kSampleTokens of `tokens` through the model on the CPU, exactly, and in kSampleLayers layers spread
// over all repeats the attention stage and the most chosen experts in every format. Each layer is measured alone: its
// input is exact. Fails with kInvalidArgument without tokens, and with kCancelled when `go_on`, asked before each layer
// and sample, says no.
Result<WeightErrors> MeasureWeightErrors(const Model& model, std::span<const int32_t> tokens, size_t n_threads,
                                         const GoOnFn& go_on = {});

// Enough values for a ratio of two sums: 64 rows of a layer, of which an expert among 128 still gets some. Of six
// layers and two experts each, other texts gave errors within a sixth on the demo model.
inline constexpr size_t kSampleTokens = 64, kSampleLayers = 6, kSampleExperts = 2;

// The text whose rows are taken when none is given: prose and code of a few sentences.
extern const std::string_view kSampleText;

}  // namespace npumoe
