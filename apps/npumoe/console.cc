// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/console.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/select.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include "apps/npumoe/text.h"
#include "npumoe/files.h"

namespace npumoe {
namespace {

// Far above any sentence of ours: parts of arguments, environment variables and files that found their way into one.
constexpr size_t kMaxNoteBytes = 1000;

constexpr int kInterrupts[] = {SIGINT, SIGTERM, SIGHUP};
volatile std::sig_atomic_t interrupted = 0;   // a global, like the next: a signal handler has nowhere else to look
volatile std::sig_atomic_t catching = 0;      // whether a first Ctrl-C only sets the flag
volatile std::sig_atomic_t catching_all = 0;  // and a first SIGTERM or SIGHUP
unsigned patience_seconds = 0;                // how long the flag may go unseen, 0 = for ever
bool stderr_is_terminal = false;              // isatty may not be asked in a handler
pthread_t user_thread;                        // the one that waits for the user, set before the handler
bool pipe_closed = false;
std::vector<std::pair<std::string, std::string>> variables;    // of the environment: name and value on one line
std::vector<std::pair<std::string, std::string>> long_values;  // of the command line: whole and as notes show it

// Async-signal-safe.
[[noreturn]] void EndAtOnce() {
  RemoveUnfinishedFiles();
  // On a terminal over "^C" or a line of progress.
  constexpr std::string_view kText = "\r\033[Knpumoe: interrupted\n", kPlain = kText.substr(4);
  const std::string_view text = stderr_is_terminal ? kText : kPlain;
  (void)!write(STDERR_FILENO, text.data(), text.size());
  _exit(kExitInterrupted);
}

extern "C" void OnInterrupt(int signal) {
  if (catching == 0 || (catching_all == 0 && signal != SIGINT)) EndAtOnce();
  // While the waiting thread holds signals back, the system gives them to any thread that does not, such as those that
  // OpenBLAS starts with the program. There they would end no wait.
  if (pthread_equal(pthread_self(), user_thread) == 0) {
    pthread_kill(user_thread, signal);
    return;
  }
  if (interrupted != 0) EndAtOnce();
  interrupted = 1;
  alarm(patience_seconds);
}

extern "C" void OnNoPatience(int) { EndAtOnce(); }

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

// A mapped file that somebody shortened has no bytes behind its last pages any more. Nothing can go on from there.
extern "C" void OnLostPage(int) {
  constexpr char kText[] = "npumoe: a file was shortened while it was in use: its data is gone\n";
  (void)!write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(kExitFailed);
}

// During its life Ctrl-C does not reach this thread; one that comes meanwhile is delivered afterwards.
class InterruptsHeld {
 public:
  InterruptsHeld() { Change(SIG_BLOCK); }
  ~InterruptsHeld() { Change(SIG_UNBLOCK); }
  InterruptsHeld(const InterruptsHeld&) = delete;
  InterruptsHeld& operator=(const InterruptsHeld&) = delete;

 private:
  static void Change(int how) {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : kInterrupts) sigaddset(&set, signal);
    pthread_sigmask(how, &set, nullptr);
  }
};

// Where they are not ignored.
void HandleInterrupts(void (*handler)(int)) {
  struct sigaction action = {}, before = {};
  action.sa_handler = handler;  // no SA_RESTART: a wait for the user ends
  for (const int signal : kInterrupts) {
    sigaction(signal, &action, &before);
    if (before.sa_handler == SIG_IGN) sigaction(signal, &before, nullptr);
  }
}

// Waits until `fd` can be read; false when Ctrl-C came first. The signal is let in by the wait alone: one that came
// between a look at the flag and a plain read() would leave that read() waiting.
bool WaitForInput(int fd) {
  const InterruptsHeld held;
  sigset_t during_wait;
  pthread_sigmask(SIG_SETMASK, nullptr, &during_wait);
  for (const int signal : kInterrupts) sigdelset(&during_wait, signal);
  while (!Interrupted()) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    if (pselect(fd + 1, &set, nullptr, nullptr, nullptr, &during_wait) >= 0 || errno != EINTR) return true;
  }
  return false;
}

}  // namespace

void PrepareStreams() {
  for (int fd = 0; fd <= 2; ++fd) {
    // Read-only on purpose: a write to a stream that was closed still fails, as it would have.
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) (void)open("/dev/null", O_RDONLY);
  }
  stderr_is_terminal = StderrIsTerminal();
  HandleInterrupts(OnInterrupt);
  std::signal(SIGALRM, OnNoPatience);
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

void ShortenInNotes(std::string_view value) {
  const std::string whole = OneLine(value);
  const std::string shown = Shortened(whole);
  if (shown.size() < whole.size()) long_values.emplace_back(whole, shown);
}

void Note(std::string_view text) {
  std::string line = OneLine(text);
  for (const auto& [whole, shown] : long_values) {
    for (size_t at = 0; (at = line.find(whole, at)) != std::string::npos; at += shown.size()) {
      line.replace(at, whole.size(), shown);
    }
  }
  WriteErr("npumoe: " + Shortened(line, kMaxNoteBytes) + "\n");
}

void NameVariable(std::string_view variable, std::string_view value) {
  variables.push_back({std::string(variable), OneLine(value)});
}

namespace {

bool HasWord(std::string_view text, std::string_view word) {
  const auto is_inner = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-'; };
  for (size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_inner(text[at - 1])) && (end == text.size() || !is_inner(text[end]))) return true;
  }
  return false;
}

// The line of an error. What a variable holds is named by it: nobody would look for it on the command line.
void NoteError(std::string_view text) {
  std::string line = OneLine(text);
  for (const auto& [variable, value] : variables) {
    if (HasWord(line, value) && line.find(variable) == std::string::npos) line += fmt::format(" ({} is set)", variable);
  }
  Note(line);
}

}  // namespace

int FailWith(const Error& error) {
  if (error.code == Code::kCancelled) return pipe_closed ? kExitDone : ExitInterrupted();
  NoteError(error.message);
  return kExitFailed;
}

int ExitInterrupted(std::string_view what) {
  Note(fmt::format("interrupted{}{}", what.empty() ? "" : ": ", what));
  return kExitInterrupted;
}

int UsageError(std::string_view text) {
  NoteError(text);
  return kExitUsage;
}

bool StdinIsTerminal() { return isatty(STDIN_FILENO) == 1; }
bool StdoutIsTerminal() { return isatty(STDOUT_FILENO) == 1; }
bool StderrIsTerminal() { return isatty(STDERR_FILENO) == 1; }

namespace {

bool SameFile(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty() || a == "-" || b == "-") return false;
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error) && !error) return true;
  const auto whole_a = std::filesystem::weakly_canonical(a, error);
  if (error) return a == b;
  const auto whole_b = std::filesystem::weakly_canonical(b, error);
  return error ? a == b : whole_a == whole_b;
}

}  // namespace

Status CheckApart(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const std::string& input : inputs) {
      if (!SameFile(outputs[i], input)) continue;
      return Error{Code::kInvalidArgument,
                   fmt::format("'{}' is to be read, so it cannot be written", OneLine(outputs[i]))};
    }
    for (size_t j = 0; j < i; ++j) {
      if (!SameFile(outputs[i], outputs[j])) continue;
      return Error{Code::kInvalidArgument, fmt::format("'{}' is to be written twice", OneLine(outputs[i]))};
    }
  }
  return Ok{};
}

namespace {

// Opening a pipe waits for its writer. -1 with EINTR when Ctrl-C came meanwhile.
int OpenToRead(const std::string& path) {
  int fd = -1;
  do {
    fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR && !Interrupted());
  return fd;
}

}  // namespace

Result<std::string> ReadAll(const std::string& path, size_t limit_bytes) {
  const std::string shown = path == "-" ? "stdin" : fmt::format("'{}'", path);
  const int fd = path == "-" ? STDIN_FILENO : OpenToRead(path);
  if (fd < 0 && errno == EINTR) return Error{Code::kCancelled, "interrupted"};
  if (fd < 0) {
    return Error{errno == ENOENT ? Code::kNotFound : Code::kIo, fmt::format("{}: {}", shown, std::strerror(errno))};
  }
  std::string text;
  char block[65536];
  Status status = Ok{};
  while (status.ok()) {
    if (!WaitForInput(fd)) {
      status = Error{Code::kCancelled, "interrupted"};
      break;
    }
    const ssize_t n = read(fd, block, sizeof block);
    if (n == 0) break;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      status = Error{Code::kIo, fmt::format("{}: {}", shown, std::strerror(errno))};
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
    if (!WaitForInput(STDIN_FILENO)) {
      buffer_.clear();
      return Outcome::kInterrupted;
    }
    char block[65536];
    const ssize_t n = read(STDIN_FILENO, block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) buffer_.append(block, static_cast<size_t>(n));
    at_end_ = n <= 0;
  }
}

void CatchInterrupts(Keeps keeps) {
  user_thread = pthread_self();
  patience_seconds = keeps == Keeps::kWork ? 0 : 2;
  catching_all = keeps == Keeps::kConversation ? 0 : 1;
  catching = 1;
}

void LetInterruptsKill() { HandleInterrupts(SIG_DFL); }

bool Interrupted() {
  if (interrupted == 0) return false;
  alarm(0);  // it was seen in time
  return true;
}
void ClearInterrupt() { interrupted = 0; }

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace npumoe
