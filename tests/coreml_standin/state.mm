// SPDX-License-Identifier: Apache-2.0
// GNUstep hides its counts from builds with NDEBUG; the library has them all the same.
#undef NDEBUG
#include "state.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>

#import <Foundation/NSDebug.h>

namespace npumoe::coreml_standin {
namespace {

std::mutex mutex;  // of everything here
std::condition_variable idle;
Knobs knobs;
Log log;
std::map<Step, size_t> n_steps;
size_t n_threads = 0;
std::atomic<long> n_live = 0;

// "macOS 14.4" or "14.4" -> 1404
int VersionOf(const std::string& text) {
  int major = 0, minor = 0;
  const size_t first = text.find_first_of("0123456789");
  if (first != std::string::npos) std::sscanf(text.c_str() + first, "%d.%d", &major, &minor);
  return 100 * major + minor;
}

void WaitUntilIdle() {
  std::unique_lock lock(mutex);
  idle.wait(lock, [] { return n_threads == 0; });
}

}  // namespace

void SetKnobs(const Knobs& wanted) {
  WaitUntilIdle();
  const std::lock_guard lock(mutex);
  knobs = wanted;
  log = {};
  n_steps.clear();
}

Log ReadLog() {
  const std::lock_guard lock(mutex);
  return log;
}

long LiveObjects() {
  WaitUntilIdle();
  return n_live;
}

long LiveFoundationObjects() {
  WaitUntilIdle();
  @autoreleasepool {
    GSDebugAllocationActive(YES);
    long n = 0;
    Class* const classes = GSDebugAllocationClassList();
    for (Class* at = classes; at != nullptr && *at != Nil; ++at) {
      // Pools are kept for reuse.
      if (*at != [NSAutoreleasePool class]) n += GSDebugAllocationCount(*at);
    }
    NSZoneFree(NSDefaultMallocZone(), classes);
    return n;
  }
}

Knobs CurrentKnobs() {
  const std::lock_guard lock(mutex);
  return knobs;
}

void WriteLog(const std::function<void(Log&)>& write) {
  const std::lock_guard lock(mutex);
  write(log);
}

void CountObject(long change) { n_live += change; }

Failure NextFailure(Step step, id half_made) {
  Failure failure = Failure::kNone;
  {
    const std::lock_guard lock(mutex);
    const size_t n = ++n_steps[step];
    for (const Knobs::Fault& fault : knobs.faults) {
      if (fault.step == step && fault.nth == n) failure = fault.failure;
    }
  }
  if (failure == Failure::kRaise) {
    [half_made release];
    [NSException raise:NSInternalInconsistencyException format:@"the stand-in was told\nto raise this"];
  }
  return failure;
}

NSError* ErrorOf(Failure failure, const std::string& reason) {
  if (failure == Failure::kNoReason) return nil;
  NSString* const text = [NSString stringWithUTF8String:reason.c_str()];
  NSDictionary* const below = [NSDictionary dictionaryWithObject:text forKey:NSLocalizedDescriptionKey];
  NSError* const cause = [NSError errorWithDomain:@"npumoe.standin" code:7 userInfo:below];
  NSDictionary* const above =
      [NSDictionary dictionaryWithObjectsAndKeys:@"The stand-in\nrefuses.", NSLocalizedDescriptionKey, cause,
                                                 NSUnderlyingErrorKey, nil];
  return [NSError errorWithDomain:@"com.apple.CoreML" code:3 userInfo:above];
}

void RunElsewhere(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex);
    ++n_threads;
  }
  std::thread([work = std::move(work)]() mutable {
    GSRegisterCurrentThread();
    @autoreleasepool {
      work();
      work = {};
    }
    GSUnregisterCurrentThread();
    const std::lock_guard lock(mutex);
    if (--n_threads == 0) idle.notify_all();
  }).detach();
}

}  // namespace npumoe::coreml_standin

extern "C" char npumoe_standin_available(const char* platform) {
  using npumoe::coreml_standin::VersionOf;
  const bool is = VersionOf(npumoe::coreml_standin::CurrentKnobs().macos) >= VersionOf(platform);
  return is ? 'i' : '\0';  // @encode(int) is "i"
}

@implementation NSObject (NpumoeStandin)
- (void)tearDown {
}
@end
