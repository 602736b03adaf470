// SPDX-License-Identifier: Apache-2.0
// What the stand-in's classes know of each other beyond Core ML's declarations.
#pragma once

#include <vector>

#include "program.h"
#include "state.h"

#import <CoreML/CoreML.h>

inline size_t ElemBytes(MLMultiArrayDataType type) { return (static_cast<size_t>(type) & 0xff) / 8; }

@interface MLMultiArray (NpumoeStandin)
- (instancetype)initOwnedWithShape:(const std::vector<size_t>&)shape
                          dataType:(MLMultiArrayDataType)dataType
                           padding:(size_t)padding;
- (void*)standinData;
@end

@interface MLMultiArrayConstraint (NpumoeStandin)
- (instancetype)initWithShape:(const std::vector<size_t>&)shape dataType:(MLMultiArrayDataType)dataType;
@end

@interface MLFeatureDescription (NpumoeStandin)
- (instancetype)initWithName:(NSString*)name constraint:(MLMultiArrayConstraint*)constraint;
@end

@interface MLModelDescription (NpumoeStandin)
- (instancetype)initWithInputs:(NSDictionary*)inputs outputs:(NSDictionary*)outputs;
@end

namespace npumoe::coreml_standin {

// A compiled package and the function that a configuration names.
struct Loaded {
  std::shared_ptr<CompiledPackage> package;
  const Function* function = nullptr;
};
Result<Loaded> LoadFunction(NSURL* url, MLModelConfiguration* configuration);

}  // namespace npumoe::coreml_standin
