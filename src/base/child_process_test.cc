// SPDX-License-Identifier: Apache-2.0
#include "base/child_process.h"

#include <gtest/gtest.h>

#include <csignal>

namespace npumoe {
namespace {

Result<ChildOutcome> Shell(const std::string& script, double limit_seconds = 60) {
  const std::string argv[] = {"/bin/sh", "-c", script};
  return RunChild(argv, limit_seconds);
}

TEST(ChildProcess, ExitCodeAndOutput) {
  const auto done = Shell("printf 'a b'; exit 3");
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(done->exit_code, 3);
  EXPECT_EQ(done->output, "a b");
  EXPECT_FALSE(done->ok());
  EXPECT_EQ(done->Describe(1), "exit code 3");
  EXPECT_TRUE(Shell("exit 0")->ok());
}

TEST(ChildProcess, ArgumentsAreNotSplit) {
  const std::string argv[] = {"/bin/sh", "-c", "printf '%s|' \"$@\"", "sh", "one two", "", "*"};
  EXPECT_EQ(RunChild(argv, 60)->output, "one two||*|");
}

TEST(ChildProcess, StdinIsEmpty) { EXPECT_EQ(Shell("cat; echo end")->output, "end\n"); }

TEST(ChildProcess, SignalIsNamed) {
  const auto done = Shell("kill -SEGV $$");
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(done->signal, SIGSEGV);
  EXPECT_FALSE(done->ok());
  EXPECT_NE(done->Describe(1).find("ended by signal 11"), std::string::npos);
}

TEST(ChildProcess, TimeLimitKills) {
  const auto done = Shell("printf x; exec sleep 1000", 0.3);
  ASSERT_TRUE(done.ok());
  EXPECT_TRUE(done->timed_out);
  EXPECT_EQ(done->output, "x");
  EXPECT_EQ(done->Describe(0.3), "still running after 0.3 s");
}

// Output ends long before the process does.
TEST(ChildProcess, TimeLimitKillsWithoutOutput) {
  const auto done = Shell("exec >&-; exec sleep 1000", 0.3);
  ASSERT_TRUE(done.ok());
  EXPECT_TRUE(done->timed_out);
}

TEST(ChildProcess, OutputIsBounded) {
  const auto done = Shell("head -c 3000000 /dev/zero");
  ASSERT_TRUE(done.ok());
  EXPECT_TRUE(done->ok());
  EXPECT_EQ(done->output.size(), kMaxChildOutput);
}

TEST(ChildProcess, WhatIsNotThere) {
  const std::string argv[] = {"/no/such/program"};
  const auto done = RunChild(argv, 1);
  if (done.ok()) {  // some systems find out in the child
    EXPECT_EQ(done->exit_code, 127);
  } else {
    EXPECT_NE(done.error().message.find("/no/such/program: cannot start"), std::string::npos);
  }
}

}  // namespace
}  // namespace npumoe
