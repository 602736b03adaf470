// SPDX-License-Identifier: Apache-2.0
#include "base/folder_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/temporary_folder.h"

namespace npumoe {
namespace {

TEST(FolderLock, IsSeenUntilTheDescriptorIsClosed) {
  TemporaryFolder folder;
  ASSERT_TRUE(folder.Make("npumoe-lock").ok());
  const std::string path = folder.path();
  EXPECT_TRUE(IsFree(path));
  for (const int how : {LOCK_EX, LOCK_SH}) {
    const int held = OpenFolder(path);
    ASSERT_GE(held, 0);
    ASSERT_TRUE(LockDescriptor(held, how | LOCK_NB));
    EXPECT_FALSE(IsFree(path));
    const int other = OpenFolder(path);
    EXPECT_EQ(LockDescriptor(other, LOCK_SH | LOCK_NB), how == LOCK_SH);
    ::close(other);
    ::close(held);
    EXPECT_TRUE(IsFree(path));
  }
}

TEST(FolderLock, IsOfFoldersThatExist) {
  TemporaryFolder folder;
  ASSERT_TRUE(folder.Make("npumoe-lock").ok());
  EXPECT_EQ(OpenFolder(folder.path() + "/missing"), -1);
  EXPECT_FALSE(IsFree(folder.path() + "/missing"));
}

}  // namespace
}  // namespace npumoe
