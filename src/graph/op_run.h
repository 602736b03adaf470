// SPDX-License-Identifier: Apache-2.0
// One op of the reference executor: operands as arrays, results to fill.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/array.h"
#include "graph/op_reader.h"

namespace npumoe {

// Borrows everything for the time of one op. Results have their declared types and zeroed storage.
class OpRun {
 public:
  // `values`: by ValueId; null where not computed yet.
  OpRun(OpReader& reader, const Op& op, const std::vector<const Array*>& values, bool fp16, std::vector<Array>& results)
      : in(reader), half(fp16), op_(op), values_(values), results_(results) {}

  OpReader& in;     // constants among the parameters
  const bool half;  // fp16 semantics: products accumulate in f32, not double

  OpKind kind() const { return op_.kind; }
  const Array& Get(std::string_view param) const { return *values_[op_.Find(param)->values[0]]; }
  const Array* Find(std::string_view param) const { return op_.Find(param) == nullptr ? nullptr : &Get(param); }
  std::vector<const Array*> List(std::string_view param) const;
  Array& out(size_t i = 0) { return results_[i]; }
  size_t n_out() const { return results_.size(); }

 private:
  const Op& op_;
  const std::vector<const Array*>& values_;
  std::vector<Array>& results_;
};

// The results of one op, rounded to their types. `values`: by ValueId, null where not computed; constants are read from
// the graph. The op must be valid in its function.
Result<std::vector<Array>> RunOp(const Graph& graph, const Function& function, const Op& op,
                                 std::vector<const Array*> values, bool fp16);

// One element from one array to another of the same type.
inline void CopyElem(const Array& from, size_t i, Array& to, size_t j) {
  if (IsFloat(from.type.elem)) {
    to.floats[j] = from.floats[i];
  } else {
    to.ints[j] = from.ints[i];
  }
}

// The element as a double; exact for every type but large 64-bit integers, which no op makes.
inline double NumberAt(const Array& array, size_t i) {
  return IsFloat(array.type.elem) ? static_cast<double>(array.floats[i]) : static_cast<double>(array.ints[i]);
}
inline void SetNumber(Array& array, size_t i, double value) {
  if (IsFloat(array.type.elem)) {
    array.floats[i] = static_cast<float>(value);
  } else {
    array.ints[i] = static_cast<int64_t>(value);
  }
}

// `value` without its fraction, within the range of a whole-number type; NaN gives 0.
int64_t Saturate(ElemType elem, double value);

// The low bits of `value`, as the type reads them.
int64_t WrapInt(ElemType elem, int64_t value);

// add, sub, mul, real_div, maximum, minimum, pow on one pair. Whole numbers: products and sums wrap at 32 bits (in
// WrapInt), division drops the fraction and gives 0 for a divisor of 0.
float ComputeBinary(OpKind kind, float x, float y);
int64_t ComputeBinary(OpKind kind, int64_t x, int64_t y);

// Family by family; each fills the results of one op. They fail only on values known at run time alone (an index out
// of range).
Status RunElementwise(OpRun& run);
Status RunSelect(OpRun& run);
Status RunCast(OpRun& run);
Status RunQuantize(OpRun& run);
Status RunDequantize(OpRun& run);
Status RunSoftmax(OpRun& run);
Status RunReduce(OpRun& run);
Status RunLayerNorm(OpRun& run);
Status RunL2Norm(OpRun& run);
Status RunCumsum(OpRun& run);
Status RunCopy(OpRun& run);  // reshape, expand_dims, squeeze, identity
Status RunTranspose(OpRun& run);
Status RunConcat(OpRun& run);
Status RunStack(OpRun& run);
Status RunSplit(OpRun& run);
Status RunSliceByIndex(OpRun& run);
Status RunSliceBySize(OpRun& run);
Status RunSliceUpdate(OpRun& run);
Status RunTile(OpRun& run);
Status RunPad(OpRun& run);
Status RunFill(OpRun& run);
Status RunBandPart(OpRun& run);
Status RunConv(OpRun& run);
Status RunLinear(OpRun& run);
Status RunMatMul(OpRun& run);
Status RunEinsum(OpRun& run);
Status RunAttention(OpRun& run);
Status RunGather(OpRun& run);
Status RunGatherAlongAxis(OpRun& run);
Status RunGatherNd(OpRun& run);
Status RunScatter(OpRun& run);
Status RunScatterAlongAxis(OpRun& run);
Status RunScatterNd(OpRun& run);
Status RunSort(OpRun& run);  // topk, argsort
Status RunAffineDequantize(OpRun& run);
Status RunLutToDense(OpRun& run);
Status RunSparseToDense(OpRun& run);
Status RunConstexprCast(OpRun& run);
Status RunBlockwiseShiftScale(OpRun& run);
Status RunLutToSparse(OpRun& run);
Status RunSparseBlockwiseShiftScale(OpRun& run);

}  // namespace npumoe
