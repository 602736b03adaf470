// SPDX-License-Identifier: Apache-2.0
#include "base/files.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "npumoe/files.h"

namespace npumoe {

namespace {

// Names of the temporary files that exist, and of files and folders that nobody will want unless more is done, for
// RemoveUnfinishedFiles: a signal handler may neither lock nor allocate. One that finds no slot, or whose name is
// longer than one, stays behind when the program ends at once.
struct Unfinished {
  enum State { kFree, kChanging, kFile, kFolder };
  std::atomic<int> state{kFree};
  char name[4096] = {};
};
constexpr size_t kMaxUnfinished = 64;  // of half a dozen at most, but for models in many parts
std::array<Unfinished, kMaxUnfinished> unfinished;
static_assert(std::atomic<int>::is_always_lock_free);

// Its slot, or -1.
int AddUnfinished(const std::string& path, Unfinished::State kind = Unfinished::kFile) {
  for (size_t i = 0; i < kMaxUnfinished && path.size() < sizeof unfinished[i].name; ++i) {
    int free = Unfinished::kFree;
    if (!unfinished[i].state.compare_exchange_strong(free, Unfinished::kChanging)) continue;
    std::memcpy(unfinished[i].name, path.c_str(), path.size() + 1);
    unfinished[i].state = kind;
    return static_cast<int>(i);
  }
  return -1;
}

void ForgetUnfinished(int slot) {
  if (slot >= 0) unfinished[static_cast<size_t>(slot)].state = Unfinished::kFree;
}

bool IsNullDevice(const struct stat& info) {
  struct stat null = {};
  return S_ISCHR(info.st_mode) && ::stat("/dev/null", &null) == 0 && S_ISCHR(null.st_mode) &&
         info.st_rdev == null.st_rdev;
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, size_t limit_bytes) {
  // O_NONBLOCK: opening a pipe that nobody writes to must not wait.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  std::FILE* file = descriptor < 0 ? nullptr : ::fdopen(descriptor, "rb");
  if (file == nullptr) {
    return MakeError(errno == ENOENT ? Code::kNotFound : Code::kIo, "{}: cannot open: {}", path, std::strerror(errno));
  }
  // A device or a pipe beside a model never ends or never begins.
  struct stat info = {};
  if (::fstat(::fileno(file), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    std::fclose(file);
    return MakeError(Code::kIo, "{}: not a regular file", path);
  }
  std::string bytes;
  std::array<char, 65536> block;
  size_t n = 0;
  // Read until the end instead of trusting a size: the file may grow, and those of /proc have none.
  while ((n = std::fread(block.data(), 1, block.size(), file)) > 0) {
    bytes.append(block.data(), n);
    if (bytes.size() > limit_bytes) {
      std::fclose(file);
      return MakeError(Code::kOutOfMemory, "{}: more than {} bytes", path, limit_bytes);
    }
  }
  const bool failed = std::ferror(file) != 0;
  const int saved = errno;
  std::fclose(file);
  if (failed) return MakeError(Code::kIo, "{}: cannot read: {}", path, std::strerror(saved));
  return bytes;
}

void RemoveUnfinishedFiles() noexcept {
  for (Unfinished& file : unfinished) {
    if (file.state == Unfinished::kFile) ::unlink(file.name);
  }
  for (Unfinished& folder : unfinished) {
    if (folder.state == Unfinished::kFolder) ::rmdir(folder.name);  // one that holds something else stays
  }
}

UnfinishedPath::UnfinishedPath(std::string path, bool is_folder)
    : path_(std::move(path)), slot_(AddUnfinished(path_, is_folder ? Unfinished::kFolder : Unfinished::kFile)) {}

UnfinishedPath::UnfinishedPath(UnfinishedPath&& other) noexcept
    : path_(std::exchange(other.path_, {})), slot_(std::exchange(other.slot_, -1)) {}

UnfinishedPath::~UnfinishedPath() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove(path_, ignored);
  ForgetUnfinished(slot_);
}

void UnfinishedPath::Keep() {
  path_.clear();
  ForgetUnfinished(std::exchange(slot_, -1));
}

Status WriteFileAtomic(const std::string& path, std::string_view bytes) {
  NM_TRY_VAR(AtomicFile file, AtomicFile::Create(path));
  NM_TRY(file.Append(bytes));
  return file.Commit();
}

Status WriteOutputFile(const std::string& path, std::string_view bytes) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  // The folder beside a model; another one that is missing is a mistyped name. An error (it exists, or its parent does
  // not) shows when the file is made.
  const bool made = folder.extension() == ".npumoe" && ::mkdir(folder.c_str(), 0777) == 0;
  const Status written = WriteFileAtomic(path, bytes);
  if (!written.ok() && made) ::rmdir(folder.c_str());
  return written;
}

Status CheckOutputFile(const std::string& path) {
  if (path.empty()) return Ok{};
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  // It is made together with the file.
  if (folder.extension() == ".npumoe" && !std::filesystem::exists(folder, ignored)) return Ok{};
  NM_TRY(AtomicFile::Create(path));
  return Ok{};
}

Result<AtomicFile> AtomicFile::Create(const std::string& path) {
  // rename() replaces whatever has the name: as root, '-o /dev/null' would take the device away from the machine. That
  // one, which people name to throw an output away, is written to as it is.
  std::string target = path;
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return MakeError(Code::kIo, "{}: cannot write: {}", path, std::strerror(EISDIR));
    if (IsNullDevice(info)) {
      std::FILE* null = std::fopen(path.c_str(), "wb");
      if (null == nullptr) return MakeError(Code::kIo, "{}: cannot write: {}", path, std::strerror(errno));
      return AtomicFile(null, path, "");
    }
    if (!S_ISREG(info.st_mode)) return MakeError(Code::kIo, "{}: cannot write: not a regular file", path);
    std::error_code error;  // write through a symbolic link instead of replacing it
    target = std::filesystem::canonical(path, error).string();
    if (error) return MakeError(Code::kIo, "{}: cannot write: {}", path, error.message());
  }
  std::FILE* file = nullptr;
  std::string temporary;
  // Process ids repeat across containers that share a folder, so never open a temporary file of somebody else.
  for (int attempt = 0; file == nullptr && attempt < 100; ++attempt) {
    temporary = fmt::format("{}.tmp{}", target, ::getpid());
    if (attempt > 0) temporary += fmt::format(".{}", attempt);
    file = std::fopen(temporary.c_str(), "wbx");
    if (file == nullptr && errno != EEXIST) break;
  }
  if (file == nullptr) return MakeError(Code::kIo, "{}: cannot write: {}", path, std::strerror(errno));
  return AtomicFile(file, target, temporary);
}

AtomicFile::AtomicFile(std::FILE* file, std::string path, std::string temporary)
    : file_(file),
      path_(std::move(path)),
      temporary_(std::move(temporary)),
      slot_(temporary_.empty() ? -1 : AddUnfinished(temporary_)) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : file_(std::exchange(other.file_, nullptr)),
      path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      slot_(std::exchange(other.slot_, -1)),
      size_bytes_(other.size_bytes_) {}

AtomicFile::~AtomicFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (!temporary_.empty()) std::remove(temporary_.c_str());
  ForgetUnfinished(slot_);
}

Status AtomicFile::Append(std::span<const std::byte> bytes) {
  NM_CHECK(file_ != nullptr);
  if (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) {
    return MakeError(Code::kIo, "{}: cannot write: {}", path_, std::strerror(errno));
  }
  size_bytes_ += bytes.size();
  return Ok{};
}

Status AtomicFile::Append(std::string_view bytes) { return Append(std::as_bytes(std::span(bytes))); }

Status AtomicFile::AppendZeros(uint64_t n_bytes) {
  static constexpr std::array<std::byte, 4096> kZeros{};
  while (n_bytes > 0) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(n_bytes, kZeros.size()));
    NM_TRY(Append(std::span(kZeros).first(n)));
    n_bytes -= n;
  }
  return Ok{};
}

Status AtomicFile::Commit() {
  NM_CHECK(file_ != nullptr);
  // A full disk may show itself only when the buffers are flushed.
  const bool renames = !temporary_.empty();
  bool good = std::fflush(file_) == 0 && (!renames || ::fsync(::fileno(file_)) == 0);
  int saved = errno;
  if (std::fclose(std::exchange(file_, nullptr)) != 0 && good) {
    good = false;
    saved = errno;
  }
  if (good && renames && std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    good = false;
    saved = errno;
  }
  if (!good && renames) std::remove(temporary_.c_str());
  ForgetUnfinished(std::exchange(slot_, -1));
  if (good) return Ok{};
  return MakeError(Code::kIo, "{}: cannot write: {}", path_, std::strerror(saved));
}

}  // namespace npumoe
