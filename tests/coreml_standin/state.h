// SPDX-License-Identifier: Apache-2.0
// For the stand-in's classes: knobs, counts, work on other threads, errors.
#pragma once

#include <functional>
#include <string>

#include "standin.h"

#import <Foundation/Foundation.h>

namespace npumoe::coreml_standin {

Knobs CurrentKnobs();
void WriteLog(const std::function<void(Log&)>& write);
void CountObject(long change);

// Whether this is the time to fail. Raises when it is time for that, after releasing what is half made.
Failure NextFailure(Step step, id half_made = nil);

// `reason` as Core ML would put it: an error with another one below. Nil for kNoReason.
NSError* ErrorOf(Failure failure, const std::string& reason);

// On a thread of its own, with an autorelease pool.
void RunElsewhere(std::function<void()> work);

}  // namespace npumoe::coreml_standin

// In the @implementation of every class of Core ML.
#define NM_COUNTED                           \
  +(id)allocWithZone : (NSZone*)zone {       \
    npumoe::coreml_standin::CountObject(1);  \
    return [super allocWithZone:zone];       \
  }                                          \
  -(void)dealloc {                           \
    npumoe::coreml_standin::CountObject(-1); \
    [self tearDown];                         \
    [super dealloc];                         \
  }

// What a class releases when it goes.
@interface NSObject (NpumoeStandin)
- (void)tearDown;
@end
