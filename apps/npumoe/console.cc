// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/console.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include "apps/npumoe/text.h"

namespace npumoe {
namespace {

volatile std::sig_atomic_t interrupted = 0;  // the one global: a signal handler has nowhere else to write
bool pipe_closed = false;

extern "C" void OnInterrupt(int) {
  if (interrupted != 0) _exit(kExitInterrupted);
  interrupted = 1;
}

// Writes everything, whatever write() returns in between; returns errno of the failure or 0.
int WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

}  // namespace

// A mapped file that somebody shortened has no bytes behind its last pages any more. Nothing can go on from there.
void OnLostPage(int) {
  constexpr char kText[] = "npumoe: a file was shortened while it was in use: its data is gone\n";
  (void)!write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(kExitFailed);
}

void PrepareStreams() {
  for (int fd = 0; fd <= 2; ++fd) {
    // Read-only on purpose: a write to a stream that was closed still fails, as it would have.
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) (void)open("/dev/null", O_RDONLY);
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a write above the file size limit fails instead
  std::signal(SIGBUS, OnLostPage);
}

Status WriteOut(std::string_view text) {
  const int error = WriteAll(STDOUT_FILENO, text);
  if (error == 0) return Ok{};
  if (error == EPIPE) {
    pipe_closed = true;
    return Error{Code::kCancelled, "stdout: the reader closed the pipe"};
  }
  return Error{Code::kIo, fmt::format("stdout: {}", std::strerror(error))};
}

void WriteErr(std::string_view text) { (void)WriteAll(STDERR_FILENO, text); }

void Note(std::string_view text) { WriteErr("npumoe: " + OneLine(text) + "\n"); }

int FailWith(const Error& error) {
  if (error.code == Code::kCancelled) return pipe_closed ? kExitDone : kExitInterrupted;
  Note(error.message);
  return kExitFailed;
}

int UsageError(std::string_view text) {
  Note(text);
  return kExitUsage;
}

bool StdinIsTerminal() { return isatty(STDIN_FILENO) == 1; }
bool StdoutIsTerminal() { return isatty(STDOUT_FILENO) == 1; }
bool StderrIsTerminal() { return isatty(STDERR_FILENO) == 1; }

Result<std::string> ReadAll(const std::string& path, size_t limit_bytes) {
  const std::string shown = path == "-" ? "stdin" : fmt::format("'{}'", path);
  const int fd = path == "-" ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return Error{errno == ENOENT ? Code::kNotFound : Code::kIo, fmt::format("{}: {}", shown, std::strerror(errno))};
  }
  std::string text;
  char block[65536];
  Status status = Ok{};
  while (status.ok()) {
    const ssize_t n = read(fd, block, sizeof block);
    if (n == 0) break;
    if (n < 0 && errno == EINTR && !Interrupted()) continue;
    if (n < 0) {
      status = Interrupted() ? Error{Code::kCancelled, "interrupted"}
                             : Error{Code::kIo, fmt::format("{}: {}", shown, std::strerror(errno))};
    } else if (text.size() + static_cast<size_t>(n) > limit_bytes) {
      status =
          Error{Code::kInvalidArgument, fmt::format("{}: more than {}, the limit", shown, FormatBytes(limit_bytes))};
    } else {
      text.append(block, static_cast<size_t>(n));
    }
  }
  if (path != "-") close(fd);
  if (!status) return status.error();
  return text;
}

LineReader::Outcome LineReader::Read(std::string& line, size_t limit_bytes) {
  bool skipping = false;
  while (true) {
    const size_t newline = buffer_.find('\n');
    if (newline != std::string::npos || at_end_) {
      if (buffer_.empty()) return skipping ? Outcome::kTooLong : Outcome::kEnd;
      line = buffer_.substr(0, newline);
      buffer_.erase(0, newline == std::string::npos ? newline : newline + 1);
      return skipping || line.size() > limit_bytes ? Outcome::kTooLong : Outcome::kLine;
    }
    if (buffer_.size() > limit_bytes) {
      skipping = true;
      buffer_.clear();
    }
    char block[65536];
    const ssize_t n = read(STDIN_FILENO, block, sizeof block);
    if (Interrupted()) {
      buffer_.clear();
      return Outcome::kInterrupted;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) buffer_.append(block, static_cast<size_t>(n));
    at_end_ = n <= 0;
  }
}

void CatchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;  // no SA_RESTART: a read() that waits for the user returns
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

bool Interrupted() { return interrupted != 0; }
void ClearInterrupt() { interrupted = 0; }

InterruptsHeld::InterruptsHeld() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

InterruptsHeld::~InterruptsHeld() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace npumoe
