// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace npumoe {

void CheckFailed(const char* file, int line, const char* text) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, text);
  std::abort();
}

std::string_view ToString(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kNotFound:
      return "not found";
    case Code::kCorruptFile:
      return "corrupt file";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kIo:
      return "i/o";
    case Code::kOutOfMemory:
      return "out of memory";
    case Code::kDevice:
      return "device";
    case Code::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

}  // namespace npumoe
