// SPDX-License-Identifier: Apache-2.0
#include "format/realign.h"

#include <cstdint>
#include <cstring>
#include <utility>

namespace npumoe {

Result<TensorView> Realigned(const TensorView& view, std::vector<Tensor>& copies) {
  const size_t wanted = view.dtype == DType::kF32 ? 4 : 2;
  if (reinterpret_cast<uintptr_t>(view.data) % wanted == 0) return view;
  NM_TRY_VAR(Tensor copy, Tensor::Make(view.dtype, view.shape));
  std::memcpy(copy.data(), view.data, copy.size_bytes());
  copies.push_back(std::move(copy));
  return copies.back().view();
}

}  // namespace npumoe
