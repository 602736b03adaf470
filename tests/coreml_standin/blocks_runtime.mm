// SPDX-License-Identifier: Apache-2.0
// The blocks runtime that clang's code calls, from the published block ABI: copying to the heap, counting, and keeping
// captured objects and blocks alive. Debian's does not retain captured objects. `__block` variables are not supported.
#include "ObjectiveC2/blocks_runtime.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#import <Foundation/Foundation.h>

namespace {

// Flags of a block; the low half of a heap block's flags is free, the count lies beside it.
constexpr int32_t kNeedsFree = 1 << 24, kHasHelpers = 1 << 25, kIsGlobal = 1 << 28;
// What a captured variable is.
constexpr int kObject = 3, kBlock = 7;

struct Descriptor {
  unsigned long reserved, size;
  void (*copy)(void* to, const void* from);  // with kHasHelpers
  void (*dispose)(const void* block);
};

struct Block {
  void* isa;
  int32_t flags, reserved;
  void (*invoke)(void*, ...);
  const Descriptor* descriptor;
};

// A block on the heap is preceded by its count.
struct alignas(16) Head {
  std::atomic<int64_t> n_references;
};

Head* HeadOf(const void* block) { return static_cast<Head*>(const_cast<void*>(block)) - 1; }

}  // namespace

extern "C" {

void* _NSConcreteStackBlock[32];
void* _NSConcreteGlobalBlock[32];
void* _NSConcreteMallocBlock[32];

void* _Block_copy(const void* block) {
  if (block == nullptr) return nullptr;
  const auto* const from = static_cast<const Block*>(block);
  if ((from->flags & kIsGlobal) != 0) return const_cast<void*>(block);
  if ((from->flags & kNeedsFree) != 0) {
    ++HeadOf(block)->n_references;
    return const_cast<void*>(block);
  }
  auto* const head = new (std::malloc(sizeof(Head) + from->descriptor->size)) Head{1};
  auto* const to = reinterpret_cast<Block*>(head + 1);
  std::memcpy(static_cast<void*>(to), block, from->descriptor->size);
  to->isa = _NSConcreteMallocBlock;
  to->flags |= kNeedsFree;
  if ((to->flags & kHasHelpers) != 0) to->descriptor->copy(to, from);
  return to;
}

void _Block_release(const void* block) {
  if (block == nullptr) return;
  const auto* const held = static_cast<const Block*>(block);
  if ((held->flags & kNeedsFree) == 0 || --HeadOf(block)->n_references > 0) return;
  if ((held->flags & kHasHelpers) != 0) held->descriptor->dispose(block);
  std::free(HeadOf(block));
}

// Called by copy helpers for every captured object or block.
void _Block_object_assign(void* to, const void* object, const int kind) {
  if (kind == kObject) {
    *static_cast<id*>(to) = [static_cast<id>(const_cast<void*>(object)) retain];
  } else if (kind == kBlock) {
    *static_cast<void**>(to) = _Block_copy(object);
  } else {
    std::abort();
  }
}

void _Block_object_dispose(const void* object, const int kind) {
  if (kind == kObject) {
    [static_cast<id>(const_cast<void*>(object)) release];
  } else if (kind == kBlock) {
    _Block_release(object);
  } else {
    std::abort();
  }
}
}
