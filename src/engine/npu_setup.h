// SPDX-License-Identifier: Apache-2.0
// From the options of an engine to a device and the plan that it runs.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "model/weights.h"
#include "moe/plan.h"
#include "npu/device.h"
#include "npumoe/engine.h"

namespace npumoe {

struct NpuSetup {
  std::unique_ptr<NpuDevice> device;  // owns the spec that the plan was made with
  Plan plan;                // has passed CheckPlan and stands on this model and device
  std::string plan_source;  // a path, or how it was made
};

// `options` has its defaults filled and names a device. Fails with kUnsupported for a device that this build does not
// have, kNotFound for an unknown simulated one, and for a plan that is bad or stale, with the reason.
Result<NpuSetup> SetUpNpu(const Model& model, const EngineOptions& options);

// What a device is planned with: a simulated one's spec, or for Core ML that of `options.spec` or of this machine,
// measured numbers of this machine included.
Result<NpuSpec> SpecOfNpu(const NpuOptions& options);

// The device alone, without a model. `n_threads`: of a simulated one.
Result<std::unique_ptr<NpuDevice>> MakeNpu(const NpuOptions& options, const NpuSpec& spec, uint32_t n_threads);

// "coreml", "coreml:gpu", ...
bool IsCoreMlName(std::string_view device);

}  // namespace npumoe
