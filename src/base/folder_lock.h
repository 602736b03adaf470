// SPDX-License-Identifier: Apache-2.0
// Folders that a process holds: the system drops the lock with the process, however that ends.
#pragma once

#include <sys/file.h>

#include <string>

namespace npumoe {

// A descriptor of the folder, to be locked and closed by the caller; -1 and errno when there is no such folder.
int OpenFolder(const std::string& path);

// flock(), gone on with after a signal. `how` is LOCK_EX or LOCK_SH, with LOCK_NB not to wait. False with errno.
bool LockDescriptor(int descriptor, int how);

// Whether nobody, in this process or another, holds the folder. False when it cannot be opened.
bool IsFree(const std::string& path);

}  // namespace npumoe
