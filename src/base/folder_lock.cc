// SPDX-License-Identifier: Apache-2.0
#include "base/folder_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace npumoe {

int OpenFolder(const std::string& path) { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

bool LockDescriptor(int descriptor, int how) {
  int result = 0;
  while ((result = ::flock(descriptor, how)) != 0 && errno == EINTR) {
  }
  return result == 0;
}

bool IsFree(const std::string& path) {
  const int descriptor = OpenFolder(path);
  if (descriptor < 0) return false;
  const bool free = LockDescriptor(descriptor, LOCK_EX | LOCK_NB);
  ::close(descriptor);
  return free;
}

}  // namespace npumoe
