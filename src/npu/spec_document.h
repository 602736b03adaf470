// SPDX-License-Identifier: Apache-2.0
// What was measured of a machine's NPU, as a file that replaces numbers of the table.
#pragma once

#include <string>
#include <string_view>

#include "npu/spec.h"

namespace npumoe {


// The measurable numbers of `spec` whose source begins with "measured", as JSON. `chip` and `os_version` say where they
// hold.
std::string MeasuredSpecText(const NpuSpec& spec, std::string_view chip, std::string_view os_version);

// Replaces the numbers of `spec` that `text` has. kInvalidArgument when it is of another chip or system version, with
// both names; kCorruptFile when it is no such file or a number is not positive and finite. `name` is the subject of
// messages. On failure `spec` stays as it was.
Status ApplyMeasuredSpec(std::string_view text, std::string_view name, std::string_view chip,
                         std::string_view os_version, NpuSpec& spec);

}  // namespace npumoe
