// SPDX-License-Identifier: Apache-2.0
// A software NPU: computes with fp16 rounding on the CPU, enforces a spec's limits, keeps virtual time and energy.
#pragma once

#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "npu/device.h"

namespace npumoe {

// Time is virtual: it depends on the work and the spec alone, never on this machine. Loading a program costs nothing
// before the first dispatch (what fits is loaded before the prompt comes) and the spec's load time later, in the
// background: one load after the other, from the end of the last dispatch on. Compiling costs nothing: programs are
// compiled once and kept on disk.
// `n_threads` compute; results do not depend on it.
std::unique_ptr<NpuDevice> MakeSimulatedDevice(const NpuSpec& spec, size_t n_threads);

}  // namespace npumoe
