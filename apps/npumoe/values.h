// SPDX-License-Identifier: Apache-2.0
// Checks of what flags are given, by one rule: a value is read as written or refused with what was wanted and got.
// Numbers are decimal: nothing wraps, no 010 is eight, no NaN passes.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace npumoe {

// A whole number in [low, high].
CLI::Validator WholeIn(int64_t low, uint64_t high);

// A finite number in [low, high].
CLI::Validator NumberIn(double low, double high);
// In (low, high].
CLI::Validator NumberAbove(double low, double high);

// One of `names`, which the help lists.
CLI::Validator MemberOf(const std::vector<std::string_view>& names);
// Likewise, but the help does not list them; the flag's own text does.
CLI::Validator SilentMemberOf(const std::vector<std::string>& names);

// Refuses "-": of outputs that stdout cannot hold. `what` is "a file" or "a folder".
CLI::Validator NotStdout(const std::string& what);

// "one of: a, b, c", for the help.
std::string OneOf(const std::vector<std::string_view>& names);

}  // namespace npumoe
