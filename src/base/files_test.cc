// SPDX-License-Identifier: Apache-2.0
#include "base/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "base/mapped_file.h"
#include "npumoe/files.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("npumoe_files_test." + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Path(const char* name) const { return (folder_ / name).string(); }
  size_t Count() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {})); }

  fs::path folder_;
};

TEST_F(Files, WhatIsWrittenIsReadBack) {
  const std::string bytes("a\0b\n\xff", 5);
  ASSERT_TRUE(WriteFileAtomic(Path("x"), bytes).ok());
  EXPECT_EQ(ReadFile(Path("x")).value(), bytes);
  ASSERT_TRUE(WriteFileAtomic(Path("x"), "").ok());  // replaces, also by nothing
  EXPECT_EQ(ReadFile(Path("x")).value(), "");
  EXPECT_EQ(Count(), 1u);
}

TEST_F(Files, UnfinishedOnesCanBeRemovedAtOnce) {
  ASSERT_TRUE(WriteFileAtomic(Path("x"), "old").ok());
  auto first = AtomicFile::Create(Path("x")), second = AtomicFile::Create(Path("y"));
  ASSERT_TRUE(first.ok() && second.ok());
  AtomicFile moved(std::move(*second));  // is still known
  { const auto gone = AtomicFile::Create(Path("z")); }
  EXPECT_EQ(Count(), 3u);
  RemoveUnfinishedFiles();
  EXPECT_EQ(Count(), 1u);
  EXPECT_EQ(ReadFile(Path("x")).value(), "old");
  EXPECT_FALSE(moved.Commit().ok());
  // What is finished stays, and its slot can be had again.
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(WriteFileAtomic(Path("y"), "new").ok());
  const auto last = AtomicFile::Create(Path("z"));
  EXPECT_EQ(Count(), 3u);
  RemoveUnfinishedFiles();
  EXPECT_EQ(Count(), 2u);
}

TEST_F(Files, UnfinishedPathsAreRemovedUnlessKept) {
  const auto fill = [&] {
    std::filesystem::create_directory(Path("folder"));
    EXPECT_TRUE(WriteFileAtomic(Path("folder/part"), "1").ok());
  };
  const auto names = [&] {
    std::vector<UnfinishedPath> paths;
    paths.emplace_back(Path("folder"), true);
    paths.emplace_back(Path("folder/part"), false);
    return paths;
  };
  fill();
  {
    const auto paths = names();
    RemoveUnfinishedFiles();
    EXPECT_FALSE(std::filesystem::exists(Path("folder")));
  }
  fill();
  {
    auto paths = names();
    while (!paths.empty()) paths.pop_back();
    EXPECT_FALSE(std::filesystem::exists(Path("folder")));
  }
  fill();
  {
    auto paths = names();
    for (UnfinishedPath& path : paths) path.Keep();
    RemoveUnfinishedFiles();
  }
  EXPECT_TRUE(std::filesystem::exists(Path("folder/part")));
  {
    const UnfinishedPath shared(Path("folder"), true);  // somebody else's file is in it
    RemoveUnfinishedFiles();
  }
  EXPECT_TRUE(std::filesystem::exists(Path("folder/part")));
}

TEST_F(Files, ReadNamesPathAndReason) {
  const auto absent = ReadFile(Path("absent"));
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().code, Code::kNotFound);
  EXPECT_EQ(absent.error().message, Path("absent") + ": cannot open: No such file or directory");
  const auto folder = ReadFile(folder_.string());
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.error().code, Code::kIo);
}

TEST_F(Files, ReadStopsAtTheLimit) {
  ASSERT_TRUE(WriteFileAtomic(Path("x"), "12345").ok());
  EXPECT_EQ(ReadFile(Path("x"), 5).value(), "12345");
  const auto cut = ReadFile(Path("x"), 4);
  ASSERT_FALSE(cut.ok());
  EXPECT_EQ(cut.error().code, Code::kOutOfMemory);
  EXPECT_EQ(cut.error().message, Path("x") + ": more than 4 bytes");
  EXPECT_FALSE(ReadFile("/dev/zero", 1000).ok());  // a device has no end
}

TEST_F(Files, AnUncommittedFileLeavesNothing) {
  ASSERT_TRUE(WriteFileAtomic(Path("x"), "old").ok());
  {
    auto file = AtomicFile::Create(Path("x"));
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->Append("new").ok());
    EXPECT_EQ(Count(), 2u);
  }
  EXPECT_EQ(ReadFile(Path("x")).value(), "old");
  EXPECT_EQ(Count(), 1u);
}

TEST_F(Files, ZerosFillToTheByte) {
  auto file = AtomicFile::Create(Path("x"));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->Append("a").ok());
  ASSERT_TRUE(file->AppendZeros(5000).ok());
  EXPECT_EQ(file->size_bytes(), 5001u);
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(ReadFile(Path("x")).value(), "a" + std::string(5000, '\0'));
}

TEST_F(Files, WritingWhereNothingCanBeIsAnError) {
  const Status status = WriteFileAtomic(Path("absent/x"), "a");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kIo);
  EXPECT_EQ(Count(), 0u);
  // The rename fails: a folder stands at the path.
  fs::create_directory(Path("folder"));
  EXPECT_FALSE(WriteFileAtomic(Path("folder"), "a").ok());
  EXPECT_EQ(Count(), 1u);
}

TEST_F(Files, TheNullDeviceIsWrittenToAndStays) {
  const auto is_device = [] { return fs::is_character_file("/dev/null"); };
  ASSERT_TRUE(is_device());
  ASSERT_TRUE(WriteFileAtomic("/dev/null", "a").ok());
  EXPECT_TRUE(CheckOutputFile("/dev/null").ok());
  fs::create_symlink("/dev/null", Path("link"));
  EXPECT_TRUE(WriteFileAtomic(Path("link"), "a").ok());
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_TRUE(is_device());
  EXPECT_EQ(Count(), 1u);
  EXPECT_FALSE(fs::exists("/dev/null.tmp" + std::to_string(::getpid())));
  // Other devices and pipes are refused.
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  for (const std::string& other : {std::string("/dev/zero"), Path("pipe")}) {
    const Status status = WriteFileAtomic(other, "a");
    ASSERT_FALSE(status.ok()) << other;
    EXPECT_NE(status.error().message.find("not a regular file"), std::string::npos) << status.error().message;
  }
}

TEST_F(Files, AnOutputFilesFolderIsMadeButNotTwo) {
  ASSERT_TRUE(WriteOutputFile(Path("x.npumoe/plan.json"), "a").ok());
  ASSERT_TRUE(WriteOutputFile(Path("x.npumoe/plan.json"), "b").ok());
  EXPECT_EQ(ReadFile(Path("x.npumoe/plan.json")).value(), "b");
  EXPECT_FALSE(WriteOutputFile(Path("y/z/plan.json"), "a").ok());
  EXPECT_EQ(Count(), 1u);
  // A write that fails takes the folder away again: the name is too long for any file.
  EXPECT_FALSE(WriteOutputFile((folder_ / "w" / std::string(300, 'n')).string(), "a").ok());
  EXPECT_EQ(Count(), 1u);
}

TEST_F(Files, MappingShowsTheBytesAndOutlivesAMove) {
  ASSERT_TRUE(WriteFileAtomic(Path("x"), "abc").ok());
  auto opened = MappedFile::Open(Path("x"));
  ASSERT_TRUE(opened.ok());
  const std::byte* const data = opened->bytes().data();
  MappedFile moved = std::move(*opened);
  ASSERT_EQ(moved.bytes().size(), 3u);
  EXPECT_EQ(moved.bytes().data(), data);
  EXPECT_EQ(moved.bytes()[2], std::byte{'c'});
  moved = MappedFile();
  EXPECT_TRUE(moved.bytes().empty());
}

TEST_F(Files, MappingRefusesWhatIsNoFile) {
  EXPECT_EQ(MappedFile::Open(Path("absent")).error().code, Code::kNotFound);
  EXPECT_EQ(MappedFile::Open(folder_.string()).error().message, folder_.string() + ": not a regular file");
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::Open(Path("pipe")).error().code, Code::kIo);  // and does not wait for a writer
  ASSERT_TRUE(WriteFileAtomic(Path("empty"), "").ok());
  EXPECT_TRUE(MappedFile::Open(Path("empty")).value().bytes().empty());
}

}  // namespace
}  // namespace npumoe
