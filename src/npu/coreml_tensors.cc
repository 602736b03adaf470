// SPDX-License-Identifier: Apache-2.0
#include "npu/coreml_tensors.h"

#include "base/check.h"

namespace npumoe {
namespace {

using Tensors = std::vector<CoreMlFunction::Tensor>;

Status CheckTypes(const std::string& subject, const Tensors& tensors) {
  for (const auto& [name, type] : tensors) {
    if (type.elem == ElemType::kF16 || type.elem == ElemType::kF32 || type.elem == ElemType::kI32) continue;
    return MakeError(Code::kInvalidArgument, "{}: '{}' is {}, wanted fp16, fp32 or int32", subject, name,
                     type.ToString());
  }
  return Ok{};
}

template <typename Ref>
Status CheckSizes(const std::string& subject, const char* what, const Tensors& tensors, std::span<const Ref> refs) {
  if (refs.size() != tensors.size()) {
    return MakeError(Code::kInvalidArgument, "{}: {} {}s given, wanted {}", subject, refs.size(), what, tensors.size());
  }
  for (size_t i = 0; i < refs.size(); ++i) {
    const auto& [name, type] = tensors[i];
    if (refs[i].size_bytes == type.bytes()) continue;
    return MakeError(Code::kInvalidArgument, "{}: {} '{}' has {} bytes, wanted {}", subject, what, name,
                     refs[i].size_bytes, type.bytes());
  }
  return Ok{};
}

}  // namespace

std::string CoreMlSubject(const std::string& compiled_path, std::string_view function) {
  return function.empty() ? fmt::format("Core ML: '{}'", compiled_path)
                          : fmt::format("Core ML: '{}', function '{}'", compiled_path, function);
}

Status CheckTypes(const std::string& subject, const CoreMlFunction& function) {
  NM_TRY(CheckTypes(subject, function.inputs));
  return CheckTypes(subject, function.outputs);
}

Status CheckSizes(const std::string& subject, const CoreMlFunction& function, std::span<const CoreMlInput> inputs,
                  std::span<const CoreMlOutput> outputs) {
  NM_TRY(CheckSizes(subject, "input", function.inputs, inputs));
  return CheckSizes(subject, "output", function.outputs, outputs);
}

}  // namespace npumoe
