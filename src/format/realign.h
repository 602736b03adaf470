// SPDX-License-Identifier: Apache-2.0
// Copies of the rare tensors whose file position is no multiple of their element size.
#pragma once

#include <vector>

#include "tensor/tensor.h"

namespace npumoe {

// `view` itself if its data is aligned for in-place loads (4 bytes for kF32, else 2), otherwise a view of an aligned
// copy that is added to `copies`; the copy's bytes stay in place when the vector moves.
Result<TensorView> Realigned(const TensorView& view, std::vector<Tensor>& copies);

}  // namespace npumoe
