// SPDX-License-Identifier: Apache-2.0
// Cost model: time and energy of one dispatch, from the work it does and a spec. docs/device_model.md holds it against
// published measurements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/graph.h"
#include "npu/spec.h"

namespace npumoe {

// What one run of one function does; a sum over its ops. Weight bytes are as they are streamed (after compression).
struct Work {
  double flops = 0;        // 2 per multiply-add
  double paced_flops = 0;  // as many at the full rate take as long: products of few rows count for more
  double weight_bytes = 0;
  double unpacked_bytes = 0;  // fp16 bytes that palettes unpack to
  double moved_bytes = 0;     // beyond weights once, inputs and outputs: operands that do not fit on the chip
  double io_bytes = 0;
  bool operator==(const Work&) const = default;
};

// `count` products of [rows, in] with a weight [in, out] each, stored in `weight_bytes` each.
struct Product {
  double rows = 0, in = 0, out = 0, count = 1;
  double weight_bytes = 0;
  bool is_int8 = false;  // activations are int8 too
};

// Adds arithmetic and moved bytes of a product; weights are the caller's to count, since ops may share them.
void AddProduct(const Product& product, const NpuSpec& spec, Work& work);

// Adds what `scores` values of attention cost beside its products: they leave the chip around softmax.
void AddScores(double scores, const NpuSpec& spec, Work& work);

// Counts the work of a function from its ops and types.
Work CountWork(const Graph& graph, const Function& function, const NpuSpec& spec);

// How a program is reached: Core ML with surface-backed fp16 arrays, or the private interface below it, where the host
// converts fp32 arrays (so were the published rows measured).
enum class NpuPath : uint8_t { kCoreMl, kDirect };

// Seconds of one dispatch by what they go to. Weights stream while the arithmetic runs, the rest follows one after the
// other: Seconds() = floor + io + moves + max(compute, weights).
struct CostParts {
  double floor = 0, io = 0, moves = 0, compute = 0, weights = 0;
  double Seconds() const { return floor + io + moves + (compute > weights ? compute : weights); }
};
CostParts PartsOf(const Work& work, const NpuSpec& spec, NpuPath path = NpuPath::kCoreMl);

struct Cost {
  double seconds = 0;
  double joules = 0;
};

// One dispatch on a warm device, floor included.
Cost DispatchCost(const Work& work, const NpuSpec& spec, NpuPath path = NpuPath::kCoreMl);

// An expert FFN (gate, up, down) for `rows` rows on the CPU, weights of `weight_bytes` in the file's blocks. Reading
// them is not hidden behind the arithmetic, so few rows are far from the full rate.
Cost CpuExpertCost(double rows, double flops_per_row, double weight_bytes, const NpuSpec& spec);

}  // namespace npumoe
