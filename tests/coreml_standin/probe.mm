// SPDX-License-Identifier: Apache-2.0
// Whether this compiler and these headers can check coreml_device.mm at all.
#include <future>
#include <memory>

#import <CoreML/CoreML.h>

std::shared_ptr<std::promise<int>> Probe(MLModelConfiguration* configuration) {
  if (@available(macOS 15.0, *)) [configuration setFunctionName:@"f"];
#ifdef NPUMOE_PROBE_UNGUARDED
  [configuration setFunctionName:@"f"];
#endif
  return std::make_shared<std::promise<int>>();
}
