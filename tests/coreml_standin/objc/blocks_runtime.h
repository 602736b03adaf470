// SPDX-License-Identifier: Apache-2.0
// Where GNUstep's headers look for Block_copy and Block_release.
#pragma once
#include "ObjectiveC2/blocks_runtime.h"
