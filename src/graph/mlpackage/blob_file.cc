// SPDX-License-Identifier: Apache-2.0
#include "graph/mlpackage/blob_file.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "graph/hash.h"
#include "graph/names.h"

namespace npumoe {
namespace {

constexpr uint64_t kAlign = 64;
constexpr uint32_t kFormatVersion = 2, kSentinel = 0xDEADBEEF;
constexpr std::string_view kModelPath = "@model_path/";

struct Header {
  uint32_t n_blobs = 0, version = kFormatVersion;
  std::array<uint64_t, 7> reserved{};
};

struct Metadata {
  uint32_t sentinel = kSentinel, code = 0;
  uint64_t data_bytes = 0, data_offset = 0, padding_bits = 0;
  std::array<uint64_t, 4> reserved{};
};

static_assert(sizeof(Header) == kAlign && sizeof(Metadata) == kAlign);

struct BlobCode {
  ElemType elem;
  uint32_t code;
};
// 5, 16 and 17 are bfloat16 and two of float8, which no graph of ours holds.
constexpr BlobCode kCodes[] = {
    {ElemType::kF16, 1}, {ElemType::kF32, 2}, {ElemType::kU8, 3},   {ElemType::kI8, 4},   {ElemType::kI16, 6},
    {ElemType::kU16, 7}, {ElemType::kI4, 8},  {ElemType::kU1, 9},   {ElemType::kU2, 10},  {ElemType::kU4, 11},
    {ElemType::kU3, 12}, {ElemType::kU6, 13}, {ElemType::kI32, 14}, {ElemType::kU32, 15},
};

uint32_t CodeOf(ElemType elem) {
  for (const auto& entry : kCodes) {
    if (entry.elem == elem) return entry.code;
  }
  return 0;
}

uint64_t RoundUp(uint64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

uint64_t PaddingBits(ElemType elem, size_t elems, size_t data_bytes) { return data_bytes * 8 - elems * BitsOf(elem); }

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <typename... Args>
Error Corrupt(std::string_view file, uint64_t offset, fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(Code::kCorruptFile, "weight file '{}': tensor at {}: {}", ShownName(file), offset,
                   fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace

bool HasBlobCode(ElemType elem) { return CodeOf(elem) != 0; }

uint64_t BlobWriter::Add(ElemType elem, size_t elems, std::span<const std::byte> data) {
  NM_CHECK(HasBlobCode(elem));
  ContentHash hash;
  hash.Add(ToString(elem));
  hash.Add(elems);
  hash.Add(data);
  const std::string key = hash.Hex();
  for (auto [it, end] = by_hash_.equal_range(key); it != end; ++it) {
    const Blob& known = blobs_[it->second];
    // Equal hashes are not proof.
    if (known.elem == elem && known.elems == elems && std::ranges::equal(known.data, data)) return known.offset;
  }
  const uint64_t offset = RoundUp(end_);
  by_hash_.emplace(key, blobs_.size());
  blobs_.push_back({elem, elems, data, offset, key});
  end_ = offset + kAlign + data.size();
  return offset;
}

std::string BlobWriter::ContentHex() const {
  ContentHash hash;
  for (const Blob& blob : blobs_) hash.Add(blob.hash);
  return hash.Hex();
}

Status BlobWriter::Write(AtomicFile& file) const {
  const Header header{static_cast<uint32_t>(blobs_.size())};
  NM_TRY(file.Append(BytesOf(header)));
  for (const Blob& blob : blobs_) {
    NM_TRY(file.AppendZeros(blob.offset - file.size_bytes()));
    Metadata metadata;
    metadata.code = CodeOf(blob.elem);
    metadata.data_bytes = blob.data.size();
    metadata.data_offset = blob.offset + kAlign;
    metadata.padding_bits = PaddingBits(blob.elem, blob.elems, blob.data.size());
    NM_TRY(file.Append(BytesOf(metadata)));
    NM_TRY(file.Append(blob.data));
  }
  NM_CHECK(file.size_bytes() == end_);
  return Ok{};
}

bool IsSafeRelativePath(std::string_view path) {
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    const auto ordinary = [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != '\\' && c != 0x7f; };
    if (!std::ranges::all_of(part, ordinary)) return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

Result<std::span<const std::byte>> WeightFiles::Open(std::string_view file) {
  if (!file.starts_with(kModelPath) || !IsSafeRelativePath(file.substr(kModelPath.size()))) {
    return MakeError(Code::kCorruptFile, "weight file '{}': wanted a path below @model_path", ShownName(file));
  }
  std::span<const std::byte> bytes = memory_;
  if (!in_memory_) {
    const auto known = files_.find(file);
    if (known != files_.end()) return known->second.bytes();
    const std::string path = folder_ + "/" + std::string(file.substr(kModelPath.size()));
    NM_TRY_VAR(MappedFile mapped, MappedFile::Open(path));
    bytes = files_.emplace(std::string(file), std::move(mapped)).first->second.bytes();
    total_bytes_ += bytes.size();
  } else {
    total_bytes_ = memory_.size();
  }
  Header header;
  if (bytes.size() < sizeof(header)) {
    return MakeError(Code::kCorruptFile, "weight file '{}': {} bytes, wanted {} or more", ShownName(file), bytes.size(),
                     sizeof(header));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.version != kFormatVersion) {
    return MakeError(Code::kUnsupported, "weight file '{}': format version {}, wanted {}", ShownName(file),
                     header.version, kFormatVersion);
  }
  return bytes;
}

Result<std::span<const std::byte>> WeightFiles::Read(std::string_view file, uint64_t offset, const ValueType& type) {
  NM_TRY_VAR(const auto bytes, Open(file));
  const uint64_t size = bytes.size();
  if (offset % kAlign != 0 || offset < kAlign || offset > size || size - offset < kAlign) {
    return Corrupt(file, offset, "no multiple of {} inside the file of {} bytes", kAlign, size);
  }
  Metadata metadata;
  std::memcpy(&metadata, bytes.data() + offset, sizeof(metadata));
  if (metadata.sentinel != kSentinel) {
    return Corrupt(file, offset, "begins with {:08x}, wanted {:08x}", metadata.sentinel, kSentinel);
  }
  if (metadata.code != CodeOf(type.elem)) {
    return Corrupt(file, offset, "element type {}, wanted {} ({})", metadata.code, CodeOf(type.elem), type.ToString());
  }
  if (metadata.data_bytes != type.bytes()) {
    return Corrupt(file, offset, "{} bytes of data, {} needs {}", metadata.data_bytes, type.ToString(), type.bytes());
  }
  const uint64_t padding = PaddingBits(type.elem, type.elems(), type.bytes());
  if (metadata.padding_bits != padding) {
    return Corrupt(file, offset, "{} bits of padding, {} has {}", metadata.padding_bits, type.ToString(), padding);
  }
  if (metadata.data_offset > size || size - metadata.data_offset < metadata.data_bytes) {
    return Corrupt(file, offset, "data at {} of {} bytes, the file has {}", metadata.data_offset, metadata.data_bytes,
                   size);
  }
  return bytes.subspan(metadata.data_offset, metadata.data_bytes);
}

}  // namespace npumoe
