// SPDX-License-Identifier: Apache-2.0
// What `npumoe info` says about a Core ML package.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "npumoe/mlpackage.h"

namespace npumoe {

std::string DescribeForPeople(const PackageInfo& info);
nlohmann::ordered_json DescribeAsJson(const PackageInfo& info);

}  // namespace npumoe
