// SPDX-License-Identifier: Apache-2.0
// The machines that can be simulated, for people.
#include "npu/coreml.h"
#include "npu/spec.h"
#include "npumoe/npu.h"

namespace npumoe {

std::vector<NpuDescription> DescribeNpus() {
  std::vector<NpuDescription> descriptions;
  for (const NpuSpec& spec : AllSpecs()) {
    NpuDescription& description = descriptions.emplace_back();
    description.name = spec.name;
    description.title = spec.title;
    for (const SpecNumber& number : Numbers(spec)) {
      description.properties.push_back(
          {std::string(number.name), std::string(number.unit), number.value, std::string(number.source)});
    }
  }
  return descriptions;
}

std::vector<std::string> NpuBackends() {
  return DescribeCoreMl().available ? std::vector<std::string>{"coreml"} : std::vector<std::string>{};
}

}  // namespace npumoe
