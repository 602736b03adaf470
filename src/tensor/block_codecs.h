// SPDX-License-Identifier: Apache-2.0
// One block at a time: the functions behind DequantizeRow and QuantizeRow.
#pragma once

#include "tensor/blocks.h"

namespace npumoe {

// out: [32] or [256], the elements of the block.
void DequantizeBlock(const BlockQ8_0& block, float* out);
void DequantizeBlock(const BlockQ4_0& block, float* out);
void DequantizeBlock(const BlockQ4_1& block, float* out);
void DequantizeBlock(const BlockQ5_0& block, float* out);
void DequantizeBlock(const BlockQ5_1& block, float* out);
void DequantizeBlock(const BlockQ2K& block, float* out);
void DequantizeBlock(const BlockQ3K& block, float* out);
void DequantizeBlock(const BlockQ4K& block, float* out);
void DequantizeBlock(const BlockQ5K& block, float* out);
void DequantizeBlock(const BlockQ6K& block, float* out);
void DequantizeBlock(const BlockIQ4NL& block, float* out);
void DequantizeBlock(const BlockIQ4XS& block, float* out);
void DequantizeBlock(const BlockMXFP4& block, float* out);

struct Extremes;

// x: [32] or [256], finite; extremes: FindExtremes(x).
void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ8_0& block);
void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ4_0& block);
void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ4_1& block);
void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ5_0& block);
void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ5_1& block);
void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ2K& block);
void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ3K& block);
void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ4K& block);
void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ5K& block);
void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ6K& block);
void QuantizeBlock(const float* x, const Extremes& extremes, BlockIQ4NL& block);
void QuantizeBlock(const float* x, const Extremes& extremes, BlockIQ4XS& block);
void QuantizeBlock(const float* x, const Extremes& extremes, BlockMXFP4& block);

}  // namespace npumoe
