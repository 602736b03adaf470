// SPDX-License-Identifier: Apache-2.0
// A software NPU: computes with fp16 rounding on the CPU, enforces a spec's limits, keeps virtual time and energy.
#pragma once

#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "npu/device.h"

namespace npumoe {

// Time is virtual: it depends on the work and the spec alone, never on this machine. Loading a program costs nothing
// the first time (programs are loaded before the prompt comes) and the spec's load time when it had been evicted.
// `n_threads` compute; results do not depend on it.
std::unique_ptr<NpuDevice> MakeSimulatedDevice(const NpuSpec& spec, size_t n_threads);

}  // namespace npumoe
