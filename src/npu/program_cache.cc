// SPDX-License-Identifier: Apache-2.0
#include "npu/program_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/folder_lock.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;

constexpr int kVersion = 1;
constexpr char kEntryFile[] = "entry.json", kLockFile[] = ".lock";
constexpr char kNewPrefix[] = ".new-", kOldPrefix[] = ".old-";  // being made, being removed
constexpr size_t kMaxEntryBytes = 65536, kMaxShownBytes = 1000;

// Whether the open folder still has this name.
bool IsAt(int descriptor, const std::string& path) {
  struct stat opened = {}, named = {};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

// Held while the names in a cache folder change. Never for long.
class NamesLock {
 public:
  explicit NamesLock(const std::string& folder)
      : descriptor_(::open((folder + "/" + kLockFile).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (descriptor_ >= 0 && !LockDescriptor(descriptor_, LOCK_EX)) {
      ::close(descriptor_);
      descriptor_ = -1;
    }
  }
  ~NamesLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  NamesLock(const NamesLock&) = delete;
  NamesLock& operator=(const NamesLock&) = delete;
  bool ok() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

// Of all regular files below `folder` but the entry file itself.
uint64_t BytesBelow(const std::string& folder) {
  std::error_code error;
  uint64_t bytes = 0;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->is_regular_file(ignored) && at->path().filename() != kEntryFile) bytes += at->file_size(ignored);
  }
  return bytes;
}

std::string EntryText(std::string_view what, std::string_view failure, uint64_t bytes) {
  const nlohmann::ordered_json json = {
      {"version", kVersion}, {"what", what}, {"size_bytes", bytes}, {"failure", failure}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Error CannotWrite(const std::string& path, const std::error_code& error) {
  return MakeError(Code::kIo, "{}: cannot write: {}", path, error.message());
}

std::string UniqueName(const char* prefix) {
  static std::atomic<unsigned> counter{0};
  return fmt::format("{}{}-{}", prefix, ::getpid(), counter++);
}

}  // namespace

CacheLease::CacheLease(CacheLease&& other) noexcept
    : folder_(std::move(other.folder_)),
      failure_(std::move(other.failure_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

CacheLease& CacheLease::operator=(CacheLease&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(failure_, other.failure_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

CacheLease::~CacheLease() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

ProgramCache::ProgramCache(std::string folder, uint64_t max_bytes) : folder_(std::move(folder)), max_bytes_(max_bytes) {
  if (folder_.empty()) {
    note_ = "no folder for compiled programs: they are not kept";
    return;
  }
  std::error_code error;
  fs::create_directories(folder_, error);
  writable_ = !error && NamesLock(folder_).ok();
  if (writable_) {
    Sweep();
  } else {
    note_ = fmt::format("{}: cannot write: {}; compiled programs are not kept", folder_,
                        error ? error.message() : std::strerror(errno));
  }
}

std::string ProgramCache::Path(std::string_view name) const { return folder_ + "/" + std::string(name); }

// Folders of processes that are gone: whoever fills one keeps it locked.
void ProgramCache::Sweep() const {
  const NamesLock lock(folder_);
  std::error_code error;
  std::vector<std::string> left;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if ((name.starts_with(kNewPrefix) || name.starts_with(kOldPrefix)) && IsFree(at->path())) left.push_back(at->path());
  }
  for (const std::string& path : left) {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
}

std::optional<CachedProgram> ProgramCache::Read(const std::string& folder, std::string_view key) const {
  const std::string file = folder + "/" + kEntryFile;
  const auto text = ReadFile(file, kMaxEntryBytes);
  if (!text.ok()) return std::nullopt;
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto string = [&](const char* name) {
    const auto at = json.find(name);
    return at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  const auto version = json.find("version"), bytes = json.find("size_bytes");
  if (version == json.end() || *version != kVersion || bytes == json.end() || !bytes->is_number_unsigned()) {
    return std::nullopt;
  }
  struct stat info = {};
  if (::stat(file.c_str(), &info) != 0) return std::nullopt;
  const auto shown = [&](const char* name) { return string(name).substr(0, kMaxShownBytes); };
  return CachedProgram{std::string(key), shown("what"), bytes->get<uint64_t>(), info.st_mtime, shown("failure"), false};
}

std::optional<CacheLease> ProgramCache::Find(std::string_view key) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto own = own_.find(key); own != own_.end()) {
      return CacheLease(scratch_.path() + "/" + std::string(key), own->second, -1);
    }
  }
  if (folder_.empty()) return std::nullopt;
  const std::string path = Path(key);
  const int descriptor = OpenFolder(path);
  if (descriptor < 0) return std::nullopt;
  // Whoever removes an entry locks it first and then gives it another name, so what still has its name is whole.
  CacheLease lease(path, "", descriptor);
  if (!LockDescriptor(descriptor, LOCK_SH | LOCK_NB) || !IsAt(descriptor, path)) return std::nullopt;
  const auto entry = Read(path, key);
  if (!entry || BytesBelow(path) != entry->size_bytes) {
    lease = CacheLease({}, {}, -1);
    if (writable_) {
      const NamesLock lock(folder_);
      Discard(path);
    }
    return std::nullopt;
  }
  ::utimensat(AT_FDCWD, (path + "/" + kEntryFile).c_str(), nullptr, 0);  // used now; a read-only folder keeps its time
  lease.failure_ = entry->failure;
  return lease;
}

// Under the lock of the names. False when the entry is in use.
bool ProgramCache::Discard(const std::string& path) const {
  const int descriptor = OpenFolder(path);
  if (descriptor < 0) return false;
  bool gone = LockDescriptor(descriptor, LOCK_EX | LOCK_NB);
  if (gone) {
    std::error_code error;
    const std::string old = Path(UniqueName(kOldPrefix));
    fs::rename(path, old, error);
    gone = !error;
    if (gone) fs::remove_all(old, error);
  }
  ::close(descriptor);
  return gone;
}

Result<CacheLease> ProgramCache::MakePrivate(std::string_view key, std::string_view, std::string_view failure,
                                             const std::function<Status(const std::string&)>& make) {
  {
    const std::lock_guard lock(mutex_);
    if (scratch_.path().empty()) NM_TRY(scratch_.Make("npumoe-programs"));
  }
  const std::string path = scratch_.path() + "/" + std::string(key);
  std::error_code error;
  fs::create_directory(path, error);
  if (error) return CannotWrite(path, error);
  if (const Status made = make(path); !made.ok()) {
    fs::remove_all(path, error);
    return made.error();
  }
  const std::lock_guard lock(mutex_);
  own_[std::string(key)] = failure;
  return CacheLease(path, std::string(failure), -1);
}

Result<CacheLease> ProgramCache::Publish(std::string_view key, std::string_view what, std::string_view failure,
                                         const std::function<Status(const std::string&)>& make) {
  std::string path;
  std::error_code error;
  CacheLease lease("", "", -1);
  {
    const NamesLock lock(folder_);
    do {  // process ids repeat across containers that share a folder
      path = Path(UniqueName(kNewPrefix));
    } while (!fs::create_directory(path, error) && !error);
    if (error) return CannotWrite(path, error);
    const int descriptor = OpenFolder(path);
    if (descriptor < 0 || !LockDescriptor(descriptor, LOCK_SH)) {
      return MakeError(Code::kIo, "{}: cannot open: {}", path, std::strerror(errno));
    }
    lease = CacheLease(Path(key), std::string(failure), descriptor);
  }
  Status made = make(path);
  if (made.ok()) made = WriteFileAtomic(path + "/" + kEntryFile, EntryText(what, failure, BytesBelow(path)));
  if (made.ok()) {
    const NamesLock lock(folder_);
    fs::rename(path, Path(key), error);
    if (error && fs::is_directory(Path(key))) {
      // Somebody was faster, or a verdict is replaced.
      if (!failure.empty() || !Read(Path(key), key) || !Read(Path(key), key)->failure.empty()) {
        if (Discard(Path(key))) fs::rename(path, Path(key), error);
      }
    }
    if (!error) {
      Trim(key);
      return lease;
    }
    made = CannotWrite(Path(key), error);
  }
  std::error_code ignored;
  fs::remove_all(path, ignored);
  if (auto theirs = error ? Find(key) : std::nullopt) return std::move(*theirs);
  return made.error();
}

Result<CacheLease> ProgramCache::Make(std::string_view key, std::string_view what,
                                      const std::function<Status(const std::string&)>& make) {
  return writable_ ? Publish(key, what, "", make) : MakePrivate(key, what, "", make);
}

Status ProgramCache::MakeFailure(std::string_view key, std::string_view what, std::string_view failure) {
  NM_CHECK(!failure.empty());
  const auto nothing = [](const std::string&) { return Status(Ok{}); };
  const auto kept = writable_ ? Publish(key, what, failure, nothing) : MakePrivate(key, what, failure, nothing);
  return kept.ok() ? Status(Ok{}) : Status(kept.error());
}

std::vector<CachedProgram> ProgramCache::List() const {
  std::vector<CachedProgram> entries;
  std::error_code error;
  if (folder_.empty()) return entries;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (name.starts_with('.')) continue;
    std::error_code ignored;
    if (!at->is_directory(ignored)) continue;
    auto entry = Read(at->path(), name);
    if (!entry) entry = CachedProgram{name, "", BytesBelow(at->path()), 0, "damaged", false};
    entry->in_use = !IsFree(at->path());
    entries.push_back(*std::move(entry));
  }
  std::ranges::sort(entries, {}, [](const CachedProgram& e) { return std::pair(e.used_at, e.key); });
  return entries;
}

RemovedPrograms ProgramCache::Remove(const std::function<bool(const CachedProgram&)>& wanted) {
  RemovedPrograms removed;
  if (!writable_) return removed;
  const NamesLock lock(folder_);
  for (const CachedProgram& entry : List()) {
    if (!wanted(entry) || !Discard(Path(entry.key))) continue;
    ++removed.n_programs;
    removed.size_bytes += entry.size_bytes;
  }
  return removed;
}

// Under the lock of the names.
void ProgramCache::Trim(std::string_view kept) {
  const auto entries = List();
  uint64_t total = 0;
  for (const CachedProgram& entry : entries) total += entry.size_bytes;
  for (const CachedProgram& entry : entries) {
    if (total <= max_bytes_) return;
    if (entry.key != kept && Discard(Path(entry.key))) total -= entry.size_bytes;
  }
}

}  // namespace npumoe
