// SPDX-License-Identifier: Apache-2.0
// How much a test does. Under the sanitizers, which look at memory and take ten times as long, a few cases of each
// kind; in an optimised build all. A program that uses this is OPTIMISED in its npumoe_test(), so that all cases do
// run.
#pragma once

namespace npumoe {

#if defined(NM_DEBUG_CHECKS)
inline constexpr bool kFewCases = true;
#else
inline constexpr bool kFewCases = false;
#endif

template <typename T>
constexpr T AllOrFew(T all, T few) {
  return kFewCases ? few : all;
}

}  // namespace npumoe
