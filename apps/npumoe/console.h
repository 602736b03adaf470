// SPDX-License-Identifier: Apache-2.0
// Everything the command line says to and hears from the outside: streams, exit codes, Ctrl-C.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;  // 128 + SIGINT, as shells report it

// Call first in main: streams 0-2 exist afterwards (a file opened later cannot become stdout by accident), and a reader
// that went away shows as an error of WriteOut instead of a signal. Ctrl-C, SIGTERM and SIGHUP end the program at once
// from here on: one line "npumoe: interrupted", kExitInterrupted, no temporary file left. Signals that whoever started
// it told it to ignore (nohup) stay ignored.
void PrepareStreams();

// Writes all of `text` to stdout at once, unbuffered. Fails with kCancelled when the reader closed the pipe.
Status WriteOut(std::string_view text);
// Writes a line "npumoe: <text>" to stderr, made safe for a terminal. Failures to do so are ignored.
void Note(std::string_view text);
// From here on notes show of this argument, when it is long, only its beginning and end (Shortened).
void ShortenInNotes(std::string_view value);
// From here on an error whose line has `value` as a word of it names the environment variable that it came from.
void NameVariable(std::string_view variable, std::string_view value);
// Bytes to stderr as they are: progress lines.
void WriteErr(std::string_view text);

// Exit codes, after saying why on stderr. Of kCancelled FailWith makes the silent 0 of a closed pipe, the reader's
// wish, or else what ExitInterrupted does.
int FailWith(const Error& error);
int UsageError(std::string_view text);
// kExitInterrupted, after the line "npumoe: interrupted", with `what` became of the work behind it, if that is said.
int ExitInterrupted(std::string_view what = {});

bool StdinIsTerminal();
bool StdoutIsTerminal();
bool StderrIsTerminal();

// The whole of a file, or of stdin for "-". Fails above `limit_bytes`, so endless devices end too.
Result<std::string> ReadAll(const std::string& path, size_t limit_bytes);

// Whether every output is another file than the inputs and the other outputs, so that nothing a user gave is replaced
// by what is made of it. kInvalidArgument names the two. Empty paths and "-" are nobody's.
Status CheckApart(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs);

// Lines of stdin without their newline.
class LineReader {
 public:
  enum class Outcome { kLine, kEnd, kInterrupted, kTooLong };
  // The last line may lack its newline. kInterrupted: Ctrl-C while waiting; what was typed is forgotten. kTooLong: more
  // than `limit_bytes` without a newline; the rest of the line is skipped.
  Outcome Read(std::string& line, size_t limit_bytes);

 private:
  std::string buffer_;
  bool at_end_ = false;
};

// What there is to keep when Ctrl-C comes.
enum class Keeps {
  kWork,          // what no file holds yet: loops are waited for
  kOutput,        // what is printed, or in a log: where no loop looks at the flag for two seconds, the program ends
  kConversation,  // as kOutput, but of a person who may go on: SIGTERM and SIGHUP end the program at once
};
// From here on the first Ctrl-C sets a flag that loops look at, and a second one before ClearInterrupt ends the program
// at once.
void CatchInterrupts(Keeps keeps);
// What the system does with signals that nobody handles, instead.
void LetInterruptsKill();
bool Interrupted();
void ClearInterrupt();

// Seconds of the monotonic clock.
double Now();

}  // namespace npumoe
