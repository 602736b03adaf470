// SPDX-License-Identifier: Apache-2.0
// What a loaded function is held to before Core ML sees anything. Kept apart from Objective-C++.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "npu/coreml.h"

namespace npumoe {

// The beginning of messages about a function of a compiled package.
std::string CoreMlSubject(const std::string& compiled_path, std::string_view function);

// Whether all tensors have types that Core ML takes and gives: fp16, fp32, int32. kInvalidArgument; `subject` begins
// messages.
Status CheckTypes(const std::string& subject, const CoreMlFunction& function);

// Whether tensors have the number and sizes of the function's. kInvalidArgument.
Status CheckSizes(const std::string& subject, const CoreMlFunction& function, std::span<const CoreMlInput> inputs,
                  std::span<const CoreMlOutput> outputs);

}  // namespace npumoe
