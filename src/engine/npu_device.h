// SPDX-License-Identifier: Apache-2.0
// From the name of an NPU to its numbers and its device.
#pragma once

#include <memory>

#include "npu/device.h"
#include "npumoe/engine.h"

namespace npumoe {

// What a device is planned with: a simulated one's spec, or for Core ML that of `options.spec` or of this machine,
// measured numbers of this machine included.
Result<NpuSpec> SpecOfNpu(const NpuOptions& options);

// The device alone, without a model. `n_threads`: of a simulated one.
Result<std::unique_ptr<NpuDevice>> MakeNpu(const NpuOptions& options, const NpuSpec& spec, uint32_t n_threads);

}  // namespace npumoe
