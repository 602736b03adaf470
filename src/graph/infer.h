// SPDX-License-Identifier: Apache-2.0
// Type inference by op family; InferTypes (builder.h) dispatches to these.
#pragma once

#include <string_view>
#include <vector>

#include "graph/array.h"
#include "graph/builder.h"
#include "graph/op_reader.h"

namespace npumoe {

using Types = std::vector<ValueType>;

// The largest tensor Core ML holds (2 GiB); also bounds every product of dims.
inline constexpr size_t kMaxTensorBytes = size_t{1} << 31;

// No zero dim, at most `max_rank` dims, at most kMaxTensorBytes. `subject` begins the message.
Status CheckType(const ValueType& type, size_t max_rank, std::string_view subject);

// A float scalar known at compile time: epsilon, alpha.
Status CheckFloatScalar(OpReader& in, std::string_view param);
// x and y of one type; returns the broadcast shape with that type.
Result<ValueType> BroadcastOperands(OpReader& in, std::string_view a, std::string_view b);

// Elementwise.
Result<Types> InferUnary(OpReader& in);
Result<Types> InferSquare(OpReader& in);
Result<Types> InferRsqrt(OpReader& in);
Result<Types> InferGelu(OpReader& in);
Result<Types> InferBinary(OpReader& in);
Result<Types> InferCompare(OpReader& in);
Result<Types> InferLogical(OpReader& in);
Result<Types> InferLogicalNot(OpReader& in);
Result<Types> InferSelect(OpReader& in);
Result<Types> InferClip(OpReader& in);
Result<Types> InferCast(OpReader& in);
Result<Types> InferIdentity(OpReader& in);
Result<Types> InferQuantize(OpReader& in);
Result<Types> InferDequantize(OpReader& in);

// Along axes.
Result<Types> InferSoftmax(OpReader& in);
Result<Types> InferReduce(OpReader& in);
Result<Types> InferArgmax(OpReader& in);
Result<Types> InferLayerNorm(OpReader& in);
Result<Types> InferL2Norm(OpReader& in);
Result<Types> InferCumsum(OpReader& in);

// Shapes.
Result<Types> InferReshape(OpReader& in);
Result<Types> InferTranspose(OpReader& in);
Result<Types> InferExpandDims(OpReader& in);
Result<Types> InferSqueeze(OpReader& in);
Result<Types> InferConcat(OpReader& in);
Result<Types> InferStack(OpReader& in);
Result<Types> InferSplit(OpReader& in);
Result<Types> InferSliceByIndex(OpReader& in);
Result<Types> InferSliceBySize(OpReader& in);
Result<Types> InferSliceUpdate(OpReader& in);
Result<Types> InferTile(OpReader& in);
Result<Types> InferPad(OpReader& in);
Result<Types> InferFill(OpReader& in);
Result<Types> InferBandPart(OpReader& in);

// Sums of products.
Result<Types> InferConv(OpReader& in);
Result<Types> InferLinear(OpReader& in);
Result<Types> InferMatMul(OpReader& in);
Result<Types> InferEinsum(OpReader& in);
Result<Types> InferAttention(OpReader& in);

// By index.
Result<Types> InferGather(OpReader& in);
Result<Types> InferGatherAlongAxis(OpReader& in);
Result<Types> InferGatherNd(OpReader& in);
Result<Types> InferScatter(OpReader& in);
Result<Types> InferScatterAlongAxis(OpReader& in);
Result<Types> InferScatterNd(OpReader& in);
Result<Types> InferTopK(OpReader& in);
Result<Types> InferArgsort(OpReader& in);

// Decoded before the graph runs.
Result<Types> InferAffineDequantize(OpReader& in);
Result<Types> InferLutToDense(OpReader& in);
Result<Types> InferSparseToDense(OpReader& in);
Result<Types> InferConstexprCast(OpReader& in);
Result<Types> InferBlockwiseShiftScale(OpReader& in);
Result<Types> InferLutToSparse(OpReader& in);
Result<Types> InferSparseBlockwiseShiftScale(OpReader& in);

}  // namespace npumoe
