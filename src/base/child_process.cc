// SPDX-License-Identifier: Apache-2.0
#include "base/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <vector>

#include "base/check.h"

extern char** environ;  // NOLINT: POSIX declares it nowhere

namespace npumoe {
namespace {

using Clock = std::chrono::steady_clock;

// Ends of a pipe that children do not inherit unless they are given them.
class Pipe {
 public:
  ~Pipe() {
    CloseWrite();
    if (read_ >= 0) ::close(read_);
  }
  bool Open() {
    int ends[2];
    if (::pipe(ends) != 0) return false;
    read_ = ends[0];
    write_ = ends[1];
    return ::fcntl(read_, F_SETFD, FD_CLOEXEC) == 0 && ::fcntl(write_, F_SETFD, FD_CLOEXEC) == 0;
  }
  void CloseWrite() {
    if (write_ >= 0) ::close(write_);
    write_ = -1;
  }
  int read_end() const { return read_; }
  int write_end() const { return write_; }

 private:
  int read_ = -1, write_ = -1;
};

// Reads until the other side closes or time is over; bytes above the limit are read and dropped.
void Drain(int fd, Clock::time_point end, std::string& output) {
  char bytes[4096];
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return;
    pollfd waited{fd, POLLIN, 0};
    const int ready = ::poll(&waited, 1, static_cast<int>(std::min<long long>(left, 1000)));
    if (ready < 0 && errno != EINTR) return;
    if (ready <= 0) continue;
    const ssize_t n = ::read(fd, bytes, sizeof(bytes));
    if (n == 0 || (n < 0 && errno != EINTR)) return;
    if (n > 0) output.append(bytes, std::min(static_cast<size_t>(n), kMaxChildOutput - output.size()));
  }
}

// True when the child ended before `end`. Closing stdout does not end a process, so this looks again and again.
bool WaitFor(pid_t pid, Clock::time_point end, int& status) {
  for (useconds_t pause = 1000;; pause = std::min<useconds_t>(pause * 2, 50000)) {
    const pid_t done = ::waitpid(pid, &status, WNOHANG);
    if (done == pid) return true;
    if (done < 0 && errno != EINTR) return true;  // somebody else reaped it
    if (Clock::now() >= end) return false;
    ::usleep(pause);
  }
}

}  // namespace

std::string ChildOutcome::Describe(double limit_seconds) const {
  if (timed_out) return fmt::format("still running after {:g} s", limit_seconds);
  if (signal != 0) return fmt::format("ended by signal {} ({})", signal, ::strsignal(signal));
  return fmt::format("exit code {}", exit_code);
}

Result<ChildOutcome> RunChild(std::span<const std::string> argv, double limit_seconds) {
  NM_CHECK(!argv.empty());
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  Pipe out;
  if (!out.Open()) return MakeError(Code::kIo, "{}: cannot start: {}", argv[0], std::strerror(errno));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out.write_end(), STDOUT_FILENO);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, argv[0].c_str(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return MakeError(Code::kIo, "{}: cannot start: {}", argv[0], std::strerror(error));
  out.CloseWrite();

  ChildOutcome outcome;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_seconds));
  Drain(out.read_end(), end, outcome.output);
  int status = 0;
  if (!WaitFor(pid, end, status)) {
    outcome.timed_out = true;
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
  }
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  return outcome;
}

}  // namespace npumoe
