// SPDX-License-Identifier: Apache-2.0
// Systems without Core ML.
#include "npu/coreml.h"

#include "base/check.h"

namespace npumoe {
namespace {

Error NoCoreMl() { return MakeError(Code::kUnsupported, "Core ML: not on this system, wanted macOS"); }

}  // namespace

CoreMlSystem DescribeCoreMl() { return {}; }

Status CompileCoreMl(const std::string&, const std::string&) { return NoCoreMl(); }

Result<std::unique_ptr<CoreMlModel>> LoadCoreMl(const std::string&, const CoreMlFunction&, ComputeUnits) {
  return NoCoreMl();
}

Result<std::vector<OpPlacement>> PlaceCoreMl(const std::string&, std::string_view, ComputeUnits) { return NoCoreMl(); }

}  // namespace npumoe
