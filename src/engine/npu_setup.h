// SPDX-License-Identifier: Apache-2.0
// From the options of an engine to a device and the plan that it runs.
#pragma once

#include <memory>
#include <string>

#include "model/weights.h"
#include "moe/plan.h"
#include "npu/device.h"
#include "npumoe/engine.h"

namespace npumoe {

struct NpuSetup {
  std::unique_ptr<NpuDevice> device;  // owns the spec that the plan was made with
  Plan plan;                // has passed CheckPlan and stands on this model and device
  std::string plan_source;   // a path, or how it was made
  std::string plan_refused;  // why the model's own plan is not taken; empty when it is, or there is none
};

// `options` has its defaults filled and names a device. Fails with kUnsupported for a device that this build does not
// have, kNotFound for an unknown simulated one, for a plan that is bad or stale, with the reason, and with kCancelled
// soon after `go_on`, asked while a plan is made, said no.
Result<NpuSetup> SetUpNpu(const Model& model, const EngineOptions& options, const GoOnFn& go_on = {});

}  // namespace npumoe
