// SPDX-License-Identifier: Apache-2.0
// How products with block-quantized weights see their activations.
#pragma once

namespace npumoe {

// Integers of 8 bits are twice as fast as those of 16 and 257 times coarser. Where integers are not used (see
// kernels/matmul.h) activations are f32 either way.
enum class Activations { kInt8, kInt16 };

}  // namespace npumoe
