// SPDX-License-Identifier: Apache-2.0
// How products see their activations.
#pragma once

namespace npumoe {

// With 8 bits, block-quantized weights meet integers of 8 bits, and bfloat16 weights meet bfloat16 (8 bits of
// significand). With 16 bits, integers of 16 bits, and f32. 8 bits are about twice as fast and 256 times coarser. Other
// weights, and machines without the instructions (see kernels/matmul.h), have f32 activations either way.
enum class Activations { k8Bits, k16Bits };

}  // namespace npumoe
