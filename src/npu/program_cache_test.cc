// SPDX-License-Identifier: Apache-2.0
#include "npu/program_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>

#include "base/check.h"
#include "base/files.h"
#include "base/random.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPlenty = uint64_t{1} << 40;

class ProgramCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "npumoe_cache_XXXXXX";
    root_ = ::mkdtemp(pattern.data());
    folder_ = root_ + "/programs";
  }
  void TearDown() override {
    std::error_code ignored;
    fs::permissions(folder_, fs::perms::owner_all, ignored);
    fs::remove_all(root_, ignored);
  }

  static std::string Key(int i) { return fmt::format("{:032x}", i); }

  // Two files of `size` characters in all, one of them in a folder.
  static auto Files(char letter, size_t size = 1000) {
    return [=](const std::string& folder) -> Status {
      std::error_code error;
      fs::create_directory(folder + "/model", error);
      NM_TRY(WriteFileAtomic(folder + "/model/weights", std::string(size - 10, letter)));
      return WriteFileAtomic(folder + "/plan", std::string(10, letter));
    };
  }
  static std::string Content(const std::string& folder) {
    const auto weights = ReadFile(folder + "/model/weights"), plan = ReadFile(folder + "/plan");
    return weights.ok() && plan.ok() ? *weights + *plan : "broken";
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  static std::vector<std::string> Keys(const ProgramCache& cache) {
    std::vector<std::string> keys;
    for (const CachedProgram& entry : cache.List()) keys.push_back(entry.key);
    return keys;
  }
  // As if it had been used `seconds` ago.
  void Age(int i, int seconds) const {
    const fs::path file = folder_ + "/" + Key(i) + "/entry.json";
    fs::last_write_time(file, fs::last_write_time(file) - std::chrono::seconds(seconds));
  }

  std::string root_, folder_;
};

TEST_F(ProgramCacheTest, KeepsWhatWasMade) {
  {
    ProgramCache cache(folder_, kPlenty);
    EXPECT_EQ(cache.note(), "");
    EXPECT_FALSE(cache.Find(Key(1)));
    const auto made = cache.Make(Key(1), "one", Files('a'));
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ(Content(made->folder()), std::string(1000, 'a'));
    EXPECT_TRUE(cache.List()[0].in_use);
  }
  ProgramCache cache(folder_, kPlenty);
  const auto entries = cache.List();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].what, "one");
  EXPECT_EQ(entries[0].size_bytes, 1000u);
  EXPECT_FALSE(entries[0].in_use);
  const auto found = cache.Find(Key(1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->failure(), "");
  EXPECT_EQ(Content(found->folder()), std::string(1000, 'a'));
}

TEST_F(ProgramCacheTest, FailedMakingLeavesNothing) {
  ProgramCache cache(folder_, kPlenty);
  const auto made = cache.Make(Key(1), "one", [](const std::string& folder) -> Status {
    NM_TRY(WriteFileAtomic(folder + "/half", "x"));
    return MakeError(Code::kDevice, "no");
  });
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().message, "no");
  EXPECT_EQ(Names(), std::vector<std::string>{".lock"});
}

TEST_F(ProgramCacheTest, VerdictsAreKeptAndReplaced) {
  ProgramCache cache(folder_, kPlenty);
  ASSERT_TRUE(cache.MakeFailure(Key(1), "one", "ended by signal 11").ok());
  EXPECT_EQ(cache.Find(Key(1))->failure(), "ended by signal 11");
  EXPECT_EQ(cache.List()[0].failure, "ended by signal 11");
  // Somebody tried again and it went well.
  ASSERT_TRUE(cache.Make(Key(1), "one", Files('a')).ok());
  EXPECT_EQ(cache.Find(Key(1))->failure(), "");
  EXPECT_EQ(Content(cache.Find(Key(1))->folder()), std::string(1000, 'a'));
  ASSERT_TRUE(cache.MakeFailure(Key(1), "one", "gone bad").ok());
  EXPECT_EQ(cache.Find(Key(1))->failure(), "gone bad");
}

TEST_F(ProgramCacheTest, DamagedEntriesAreMadeAgain) {
  ProgramCache cache(folder_, kPlenty);
  const std::string entry = folder_ + "/" + Key(1);
  for (int damage = 0; damage < 5; ++damage) {
    ASSERT_TRUE(cache.Make(Key(1), "one", Files('a')).ok());
    switch (damage) {
      case 0: fs::resize_file(entry + "/plan", 9); break;
      case 1: fs::remove(entry + "/model/weights"); break;
      case 2: fs::remove(entry + "/entry.json"); break;
      case 3: ASSERT_TRUE(WriteFileAtomic(entry + "/entry.json", "{\"version\": 1}").ok()); break;
      case 4: ASSERT_TRUE(WriteFileAtomic(entry + "/entry.json", "[[[[").ok()); break;
    }
    EXPECT_FALSE(cache.Find(Key(1))) << damage;
    EXPECT_FALSE(fs::exists(entry)) << damage;
  }
}

TEST_F(ProgramCacheTest, WhatIsNoEntryIsListedAndRemoved) {
  ProgramCache cache(folder_, kPlenty);
  fs::create_directory(folder_ + "/strange");
  ASSERT_TRUE(WriteFileAtomic(folder_ + "/strange/file", "12345").ok());
  ASSERT_TRUE(WriteFileAtomic(folder_ + "/a file", "1").ok());  // not ours at all
  const auto entries = cache.List();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].failure, "damaged");
  EXPECT_EQ(entries[0].size_bytes, 5u);
  EXPECT_EQ(cache.Remove([](const CachedProgram&) { return true; }).n_programs, 1u);
  EXPECT_EQ(Names(), (std::vector<std::string>{".lock", "a file"}));
}

TEST_F(ProgramCacheTest, LeastRecentlyUsedGoesFirst) {
  ProgramCache cache(folder_, 3000);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(cache.Make(Key(i), "x", Files('a')).ok());
    Age(i, 100 - i);
  }
  EXPECT_TRUE(cache.Find(Key(0)));  // used now
  ASSERT_TRUE(cache.Make(Key(3), "x", Files('b')).ok());
  EXPECT_EQ(Keys(cache), (std::vector<std::string>{Key(2), Key(0), Key(3)}));
}

TEST_F(ProgramCacheTest, WhatIsInUseStays) {
  ProgramCache cache(folder_, 1500), other(folder_, 1500);
  auto lease = std::make_optional(cache.Make(Key(0), "x", Files('a')).value());
  Age(0, 100);
  ASSERT_TRUE(other.Make(Key(1), "x", Files('b')).ok());
  EXPECT_EQ(Keys(cache), (std::vector<std::string>{Key(0), Key(1)}));
  EXPECT_EQ(other.Remove([](const CachedProgram& entry) { return entry.key == Key(0); }).n_programs, 0u);
  lease.reset();
  ASSERT_TRUE(other.Make(Key(2), "x", Files('c')).ok());
  EXPECT_EQ(Keys(cache), std::vector<std::string>{Key(2)});
  EXPECT_EQ(other.Remove([](const CachedProgram&) { return true; }).size_bytes, 1000u);
  EXPECT_EQ(Names(), std::vector<std::string>{".lock"});
}

TEST_F(ProgramCacheTest, ManyThreadsMakeTheSame) {
  std::vector<std::jthread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      ProgramCache cache(folder_, kPlenty);
      for (int i = 0; i < 10; ++i) {
        auto lease = cache.Find(Key(i));
        if (!lease) {
          auto made = cache.Make(Key(i), "x", Files(static_cast<char>('a' + i)));
          if (!made.ok()) continue;
          lease = std::move(*made);
        }
        right += Content(lease->folder()) == std::string(1000, static_cast<char>('a' + i));
      }
    });
  }
  threads.clear();
  EXPECT_EQ(right, 80);
  EXPECT_EQ(ProgramCache(folder_, kPlenty).List().size(), 10u);
}

// Killed at any moment: what can be found is whole, what was begun is swept.
TEST_F(ProgramCacheTest, SurvivesKilling) {
  Random random(1);
  size_t n_found = 0, n_swept = 0;
  for (int round = 0; round < 60; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ProgramCache cache(folder_, 20000);
      for (int i = 0;; ++i) {
        const int key = i % 40;
        if (!cache.Find(Key(key))) {
          static_cast<void>(cache.Make(Key(key), "x", Files(static_cast<char>('a' + key % 26))));
        }
      }
    }
    ::usleep(static_cast<useconds_t>(random.Uniform() * 20000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    for (const std::string& name : fs::exists(folder_) ? Names() : std::vector<std::string>{}) {
      n_swept += name.starts_with(".new") || name.starts_with(".old");
    }
    ProgramCache cache(folder_, kPlenty);
    for (int key = 0; key < 40; ++key) {
      const auto lease = cache.Find(Key(key));
      if (!lease) continue;
      ++n_found;
      ASSERT_EQ(Content(lease->folder()), std::string(1000, static_cast<char>('a' + key % 26)));
    }
    for (const std::string& name : Names()) ASSERT_TRUE(name == ".lock" || name.size() == 32) << name;
  }
  EXPECT_GT(n_found, 0u);
  EXPECT_GT(n_swept, 0u) << "no kill came while something was made: the test shows nothing";
}

TEST_F(ProgramCacheTest, FullDisk) {
  ProgramCache cache(folder_, kPlenty);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{500, 500};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto made = cache.Make(Key(1), "x", Files('a'));
    ::_exit(!made.ok() && made.error().code == Code::kIo ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Names(), std::vector<std::string>{".lock"});
}

// A file where the folder should be stops root too.
TEST_F(ProgramCacheTest, FolderThatCannotBeWritten) {
  ASSERT_TRUE(WriteFileAtomic(folder_, "in the way").ok());
  std::string scratch;
  {
    ProgramCache cache(folder_, kPlenty);
    EXPECT_NE(cache.note().find("cannot write"), std::string::npos) << cache.note();
    const auto made = cache.Make(Key(1), "x", Files('a'));
    ASSERT_TRUE(made.ok()) << made.error().message;
    scratch = made->folder();
    EXPECT_EQ(Content(cache.Find(Key(1))->folder()), std::string(1000, 'a'));
    ASSERT_TRUE(cache.MakeFailure(Key(2), "x", "bad").ok());
    EXPECT_EQ(cache.Find(Key(2))->failure(), "bad");
    EXPECT_TRUE(cache.List().empty());
  }
  EXPECT_FALSE(fs::exists(scratch));
  EXPECT_EQ(*ReadFile(folder_), "in the way");
}

TEST_F(ProgramCacheTest, ReadOnlyFolderIsRead) {
  { ASSERT_TRUE(ProgramCache(folder_, kPlenty).Make(Key(1), "x", Files('a')).ok()); }
  fs::permissions(root_, fs::perms::all);
  for (const auto& entry : fs::recursive_directory_iterator(folder_)) fs::permissions(entry, fs::perms(0755));
  fs::permissions(folder_, fs::perms(0555));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kNobody = 65534;  // root writes everywhere
    if (::geteuid() == 0 && ::setuid(kNobody) != 0) ::_exit(2);
    bool right = false;
    {
      ProgramCache cache(folder_, kPlenty);
      right = cache.Find(Key(1)) && cache.Make(Key(2), "x", Files('b')).ok() && cache.Find(Key(2)) &&
              cache.note().find("cannot write") != std::string::npos && cache.List().size() == 1;
    }
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace npumoe
