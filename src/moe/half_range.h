// SPDX-License-Identifier: Apache-2.0
// Whether fp16 holds a layer's values, by the largest that calibration saw.
#pragma once

#include <string>

#include "moe/routing_stats.h"

namespace npumoe {

// A quarter of fp16's largest value: room for text unlike the calibration's.
inline constexpr float kSafeF16 = 65504.0f / 4;

// Why fp16 endangers a layer's attention; empty when it does not.
std::string AttentionDanger(const ActivationRange& range);

// Sets `scale` so that the values behind `up` stay safe, or says why no scale helps.
std::string ScaleOrDanger(const ActivationRange& range, float& scale);

}  // namespace npumoe
