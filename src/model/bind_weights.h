// SPDX-License-Identifier: Apache-2.0
// From the tensors of a checkpoint to ModelWeights: names resolved, shapes checked, small tensors converted.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/tensor_names.h"
#include "model/weights.h"
#include "tensor/tensor.h"

namespace npumoe {

struct NamedView {
  TensorView view;
  std::string file_name;  // the file's own name for the tensor, for messages
};
// By GGUF name or canonical Hugging Face name.
using TensorMap = std::map<std::string, NamedView, std::less<>>;

struct BoundWeights {
  ModelWeights weights;
  std::vector<Tensor> converted;      // owns what `weights` does not borrow from the file
  std::vector<std::string> warnings;  // unused tensors
};

// `subject` (the path) opens every error message. The views borrow from the owner of `tensors`' views and from
// `converted`.
Result<BoundWeights> BindWeights(const TensorMap& tensors, Naming naming, const ModelConfig& config,
                                 std::string_view subject);

}  // namespace npumoe
