// SPDX-License-Identifier: Apache-2.0
// Needs C++20 and the public headers; a warning of ours would stop nobody else's code.
#include "npumoe/engine.h"

int main(int argc, char**) {
  unsigned char narrowed = argc;  // -Wconversion would speak up
  npumoe::SamplerParams params{.seed = narrowed};
  return params.seed == 0;
}
