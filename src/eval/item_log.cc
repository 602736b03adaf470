// SPDX-License-Identifier: Apache-2.0
#include "eval/item_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "format/printable.h"
#include "model/json_fields.h"

namespace npumoe {
namespace {

constexpr char kMark[] = "npumoe_eval_log";
constexpr int kVersion = 1;
constexpr size_t kMaxLogBytes = size_t{1} << 30;
constexpr size_t kShownBytes = 60;  // of a value in a message

std::string HeaderLine(const LogHeader& header) {
  nlohmann::ordered_json json{{kMark, kVersion}};
  for (const auto& [name, value] : header) json[name] = value;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Status CheckHeader(std::string_view line, const std::string& wanted_line, const LogHeader& header,
                   const std::string& path) {
  if (line == wanted_line) return Ok{};
  const auto json = ParseJsonObject(line, path);
  if (!json.ok() || !json->contains(kMark)) {
    return MakeError(Code::kCorruptFile, "{}: line 1: not a log of 'npumoe eval'", path);
  }
  if ((*json)[kMark] != kVersion) {
    return MakeError(Code::kCorruptFile, "{}: line 1: another version of the log, wanted {}", path, kVersion);
  }
  for (const auto& [name, value] : header) {
    const auto found = json->find(name);
    const std::string got = found != json->end() && found->is_string() ? found->get<std::string>() : "";
    if (got != value) {
      return MakeError(Code::kInvalidArgument, "{}: a log of another run: {} '{}', this one has '{}'", path, name,
                       Printable(got, kShownBytes), Printable(value, kShownBytes));
    }
  }
  return MakeError(Code::kCorruptFile, "{}: line 1: unknown fields", path);
}

}  // namespace

Result<ItemLog> ItemLog::Open(const std::string& path, const LogHeader& header) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file < 0) return MakeError(Code::kIo, "{}: cannot open: {}", path, std::strerror(errno));
  ItemLog log(file, path);
  struct stat info = {};
  if (::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) return MakeError(Code::kIo, "{}: not a regular file", path);
  if (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    return MakeError(Code::kInvalidArgument, "{}: another run is writing it", path);
  }
  NM_TRY(log.Read(header));
  return log;
}

Status ItemLog::Read(const LogHeader& header) {
  NM_TRY_VAR(const std::string bytes, ReadFile(path_, kMaxLogBytes));
  const std::string wanted = HeaderLine(header);
  size_t good = 0, number = 0;
  for (size_t end; (end = bytes.find('\n', good)) != std::string::npos; good = end + 1) {
    std::string_view line = std::string_view(bytes).substr(good, end - good);
    if (line.ends_with('\r')) line.remove_suffix(1);  // an editor of another system was here
    if (++number == 1) {
      NM_TRY(CheckHeader(line, wanted, header, path_));
      continue;
    }
    NM_TRY_VAR(ItemRecord record, ParseItemRecord(line, fmt::format("{}: line {}", path_, number)));
    const uint64_t item = record.item;
    if (!records_.emplace(item, std::move(record)).second) {
      return MakeError(Code::kCorruptFile, "{}: line {}: item {} for the second time", path_, number, item);
    }
  }
  // What follows the last newline was being written when a run ended. A file that holds nothing else must look like the
  // beginning of a log, or else it is somebody's.
  if (number == 0 && !std::string_view(wanted).starts_with(bytes)) return CheckHeader(bytes, wanted, header, path_);
  if (good < bytes.size() && ::ftruncate(file_, static_cast<off_t>(good)) != 0) {
    return MakeError(Code::kIo, "{}: cannot write: {}", path_, std::strerror(errno));
  }
  return number == 0 ? WriteLine(wanted) : Ok{};
}

Status ItemLog::WriteLine(std::string line) {
  line += '\n';
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(file_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return MakeError(Code::kIo, "{}: cannot write: {}", path_, std::strerror(errno));
    done += static_cast<size_t>(n);
  }
  return Ok{};
}

Status ItemLog::Append(const ItemRecord& record) { return WriteLine(ToJsonLine(record)); }

ItemLog::ItemLog(ItemLog&& other) noexcept
    : file_(std::exchange(other.file_, -1)), path_(std::move(other.path_)), records_(std::move(other.records_)) {}

ItemLog::~ItemLog() {
  if (file_ >= 0) ::close(file_);
}

}  // namespace npumoe
