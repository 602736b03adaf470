// SPDX-License-Identifier: Apache-2.0
// Options of an engine, checked and with their defaults.
#pragma once

#include "kernels/activations.h"
#include "model/config.h"
#include "npumoe/engine.h"
#include "tensor/dtype.h"

namespace npumoe {

DType KvDType(KvType type);
// Keys and values of one position in all layers. kUnsupported when the type's blocks do not fill the model's heads.
Result<uint64_t> KvBytesPerToken(KvType type, const ModelConfig& config);
Activations ActivationsOf(const EngineOptions& options);  // after FillDefaults

// 0s replaced by what this machine and model suggest. kInvalidArgument names the option that is out of range.
Result<EngineOptions> FillDefaults(const EngineOptions& options, const ModelConfig& config);

}  // namespace npumoe
