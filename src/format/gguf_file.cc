// SPDX-License-Identifier: Apache-2.0
// GgufFile: opening, merging split files, typed getters.
#include <cmath>
#include <utility>

#include "base/check.h"
#include "format/gguf.h"
#include "format/printable.h"
#include "format/realign.h"

namespace npumoe {
namespace {

// "-00001-of-00003.gguf": the number of digits is fixed by llama.cpp's gguf-split.
constexpr size_t kSplitDigits = 5;
constexpr size_t kSplitSuffixBytes = 1 + kSplitDigits + 4 + kSplitDigits + 5;

struct SplitName {
  std::string stem;     // everything before the suffix, folder included
  uint64_t number = 0;  // 1-based
  uint64_t n_splits = 0;
};

std::optional<uint64_t> ParseDigits(std::string_view digits) {
  uint64_t value = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  return value;
}

std::optional<SplitName> ParseSplitName(std::string_view path) {
  if (path.size() < kSplitSuffixBytes || !path.ends_with(".gguf")) return std::nullopt;
  const std::string_view suffix = path.substr(path.size() - kSplitSuffixBytes);
  if (suffix[0] != '-' || suffix.substr(1 + kSplitDigits, 4) != "-of-") return std::nullopt;
  const auto number = ParseDigits(suffix.substr(1, kSplitDigits));
  const auto n_splits = ParseDigits(suffix.substr(1 + kSplitDigits + 4, kSplitDigits));
  if (!number || !n_splits) return std::nullopt;
  return SplitName{std::string(path.substr(0, path.size() - kSplitSuffixBytes)), *number, *n_splits};
}

std::string SplitPath(const SplitName& name, uint64_t number) {
  return fmt::format("{}-{:05d}-of-{:05d}.gguf", name.stem, number, name.n_splits);
}

std::string Where(const std::string& path) { return Printable(path, 1000); }

// Metadata is kept apart from GgufFile's own getters because the parts of a split have their own.
Result<uint64_t> UintOf(const GgufValue& value, std::string_view key, const std::string& path) {
  if (const uint64_t* const number = std::get_if<uint64_t>(&value)) return *number;
  if (const int64_t* const number = std::get_if<int64_t>(&value)) {
    if (*number >= 0) return static_cast<uint64_t>(*number);
    return MakeError(Code::kCorruptFile, "{}: key '{}': {} is negative, wanted at least 0", Where(path), Printable(key),
                     *number);
  }
  return MakeError(Code::kCorruptFile, "{}: key '{}': {}, wanted an unsigned integer", Where(path), Printable(key),
                   GgufTypeName(value));
}

Result<uint64_t> SplitKey(const GgufContents& contents, std::string_view key, const std::string& path) {
  const auto it = contents.metadata.find(key);
  if (it == contents.metadata.end()) {
    return MakeError(Code::kCorruptFile, "{}: part of a split file, but key '{}' is missing", Where(path), key);
  }
  return UintOf(it->second, key, path);
}

// What the parts of one split must agree on.
Status CheckSplit(const GgufContents& contents, const std::string& path, uint64_t number, uint64_t n_splits,
                  uint64_t n_tensors) {
  NM_TRY_VAR(const uint64_t count, SplitKey(contents, "split.count", path));
  NM_TRY_VAR(const uint64_t no, SplitKey(contents, "split.no", path));
  NM_TRY_VAR(const uint64_t total, SplitKey(contents, "split.tensors.count", path));
  if (count != n_splits) {
    return MakeError(Code::kCorruptFile, "{}: split.count {}, but the file names say {}", Where(path), count, n_splits);
  }
  if (no != number - 1) {
    return MakeError(Code::kCorruptFile, "{}: split.no {} (part {}), but the file name says part {}", Where(path), no,
                     no + 1, number);
  }
  if (total != n_tensors) {
    return MakeError(Code::kCorruptFile, "{}: split.tensors.count {}, but another part says {}", Where(path), total,
                     n_tensors);
  }
  return Ok{};
}

struct Part {
  MappedFile file;
  GgufContents contents;
};

Result<Part> OpenPart(const std::string& path) {
  Part part;
  NM_TRY_VAR(part.file, MappedFile::Open(path));
  NM_TRY_VAR(part.contents, ParseGguf(part.file.bytes(), path));
  return part;
}

// The number of parts `contents` belongs to; 1 for a file that is not split.
Result<uint64_t> CountSplits(const GgufContents& contents, const std::string& path) {
  const auto it = contents.metadata.find("split.count");
  if (it == contents.metadata.end()) return uint64_t{1};
  NM_TRY_VAR(const uint64_t count, UintOf(it->second, "split.count", path));
  return count == 0 ? uint64_t{1} : count;
}

}  // namespace

std::string_view GgufTypeName(const GgufValue& value) {
  struct Visitor {
    std::string_view operator()(uint64_t) const { return "an unsigned integer"; }
    std::string_view operator()(int64_t) const { return "a signed integer"; }
    std::string_view operator()(double) const { return "a float"; }
    std::string_view operator()(bool) const { return "a bool"; }
    std::string_view operator()(std::string_view) const { return "a string"; }
    std::string_view operator()(const GgufArray&) const { return "an array"; }
  };
  return std::visit(Visitor{}, value);
}

Result<GgufFile> GgufFile::Open(const std::string& path) {
  NM_TRY_VAR(Part part, OpenPart(path));
  NM_TRY_VAR(const uint64_t n_splits, CountSplits(part.contents, path));
  const auto name = ParseSplitName(path);
  GgufFile out;
  if (n_splits == 1) {
    if (name && name->n_splits > 1) {
      return MakeError(Code::kCorruptFile, "{}: the name says part {} of {}, but the file has no split.count",
                       Where(path), name->number, name->n_splits);
    }
    NM_TRY(out.AddPart(std::move(part.file), std::move(part.contents)));
    return out;
  }
  if (!name) {
    return MakeError(Code::kInvalidArgument,
                     "{}: one of {} parts (split.count), but the name does not end in '-00001-of-{:05d}.gguf', so the "
                     "other parts cannot be found",
                     Where(path), n_splits, n_splits);
  }
  if (name->number < 1 || name->number > name->n_splits) {
    return MakeError(Code::kInvalidArgument, "{}: the name says part {} of {}", Where(path), name->number,
                     name->n_splits);
  }
  NM_TRY_VAR(const uint64_t n_tensors, SplitKey(part.contents, "split.tensors.count", path));
  NM_TRY(CheckSplit(part.contents, path, name->number, name->n_splits, n_tensors));
  for (uint64_t number = 1; number <= name->n_splits; ++number) {
    const std::string part_path = SplitPath(*name, number);
    auto opened = number == name->number ? Result<Part>(std::move(part)) : OpenPart(part_path);
    if (!opened.ok()) {
      if (opened.error().code != Code::kNotFound) return opened.error();
      return MakeError(Code::kNotFound, "{}: part {} of {} is missing: no file '{}'", Where(path), number,
                       name->n_splits, Where(part_path));
    }
    NM_TRY(CheckSplit(opened->contents, part_path, number, name->n_splits, n_tensors));
    NM_TRY(out.AddPart(std::move(opened->file), std::move(opened->contents)));
  }
  if (out.tensors_.size() != n_tensors) {
    return MakeError(Code::kCorruptFile, "{}: {} tensors in {} parts, but split.tensors.count is {}", Where(path),
                     out.tensors_.size(), name->n_splits, n_tensors);
  }
  return out;
}

Status GgufFile::AddPart(MappedFile file, GgufContents contents) {
  for (auto& [tensor_name, view] : contents.tensors) {
    NM_TRY_VAR(TensorView aligned, Realigned(view, copies_));
    if (!tensors_.emplace(tensor_name, aligned).second) {
      return MakeError(Code::kCorruptFile, "{}: tensor '{}' is also in an earlier part", Where(file.path()),
                       Printable(tensor_name));
    }
  }
  if (files_.empty()) {
    version_ = contents.version;
    metadata_ = std::move(contents.metadata);
  }
  files_.push_back(std::move(file));
  return Ok{};
}

size_t GgufFile::size_bytes() const {
  size_t total = 0;
  for (const MappedFile& file : files_) total += file.bytes().size();
  return total;
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

const TensorView* GgufFile::FindTensor(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

Result<const GgufValue*> GgufFile::Need(std::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return MakeError(Code::kNotFound, "{}: key '{}' is missing", Where(path()), Printable(key));
  return value;
}

Error GgufFile::WrongType(std::string_view key, const GgufValue& value, std::string_view wanted) const {
  return MakeError(Code::kCorruptFile, "{}: key '{}': {}, wanted {}", Where(path()), Printable(key),
                   GgufTypeName(value), wanted);
}

Result<uint64_t> GgufFile::Uint(std::string_view key, uint64_t max) const {
  NM_TRY_VAR(const GgufValue* const value, Need(key));
  NM_TRY_VAR(const uint64_t number, UintOf(*value, key, path()));
  if (number > max) {
    return MakeError(Code::kCorruptFile, "{}: key '{}': {}, wanted at most {}", Where(path()), Printable(key), number,
                     max);
  }
  return number;
}

Result<double> GgufFile::Float(std::string_view key) const {
  NM_TRY_VAR(const GgufValue* const value, Need(key));
  double number = 0;
  if (const double* const real = std::get_if<double>(value)) {
    number = *real;
  } else if (const uint64_t* const u = std::get_if<uint64_t>(value)) {
    number = static_cast<double>(*u);
  } else if (const int64_t* const i = std::get_if<int64_t>(value)) {
    number = static_cast<double>(*i);
  } else {
    return WrongType(key, *value, "a float");
  }
  if (!std::isfinite(number)) {
    return MakeError(Code::kCorruptFile, "{}: key '{}': {}, wanted a finite number", Where(path()), Printable(key),
                     number);
  }
  return number;
}

Result<bool> GgufFile::Bool(std::string_view key) const {
  NM_TRY_VAR(const GgufValue* const value, Need(key));
  if (const bool* const flag = std::get_if<bool>(value)) return *flag;
  return WrongType(key, *value, "a bool");
}

Result<std::string_view> GgufFile::String(std::string_view key) const {
  NM_TRY_VAR(const GgufValue* const value, Need(key));
  if (const auto* const text = std::get_if<std::string_view>(value)) return *text;
  return WrongType(key, *value, "a string");
}

}  // namespace npumoe
