// SPDX-License-Identifier: Apache-2.0
// The integer path (integer_strip.h) for the SIMD targets AVX2 and NEON, on which alone these may be called.
// Activations of 8 and of 16 bits are compiled apart, because each takes long.
#pragma once

#include <cstddef>

#include "kernels/strip.h"

namespace npumoe {

// See IntegerScratchFloats and RunIntegerStrip.
size_t NarrowScratchFloats8(size_t max_inner);
size_t NarrowScratchFloats16(size_t max_inner);
void RunNarrowStrip8(const StripArgs& args, bool prepared);
void RunNarrowStrip16(const StripArgs& args, bool prepared);

}  // namespace npumoe
