// SPDX-License-Identifier: Apache-2.0
// How long work is told to stop.
#pragma once

#include <functional>

namespace npumoe {

// Whether work shall go on; asked on the thread that works, again and again: planning a large model takes minutes.
// How much of it is left nobody knows: how many plans are tried depends on what the first ones cost.
using GoOnFn = std::function<bool()>;

}  // namespace npumoe
