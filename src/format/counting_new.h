// SPDX-License-Identifier: Apache-2.0
// Test helper: counts what operator new is asked for, in programs that link counting_new.cc.
#pragma once

#include <cstddef>

namespace npumoe {

// Bytes asked for since the program started, freed or not.
size_t AllocatedBytes();

}  // namespace npumoe
