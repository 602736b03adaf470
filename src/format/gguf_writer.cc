// SPDX-License-Identifier: Apache-2.0
#include "format/gguf_writer.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/checked_math.h"
#include "format/printable.h"

namespace npumoe {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are written as little endian");

constexpr uint64_t kAlignment = 32;         // what a file without general.alignment has
constexpr size_t kLongestKey = 65535;      // GGUF specification
constexpr size_t kLongestTensorName = 63;  // llama.cpp wants one byte less than the specification's 64
constexpr uint32_t kTypeU16 = 2, kTypeU32 = 4, kTypeI32 = 5, kTypeF32 = 6, kTypeBool = 7, kTypeString = 8,
                   kTypeArray = 9;

template <typename T>
void Put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void PutString(std::string& out, std::string_view text) {
  Put<uint64_t>(out, text.size());
  out += text;
}

template <typename T>
void PutArray(std::string& out, uint32_t type, std::span<const T> values) {
  Put<uint32_t>(out, type);
  Put<uint64_t>(out, values.size());
  out.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

uint64_t Padding(uint64_t n_bytes) { return (kAlignment - n_bytes % kAlignment) % kAlignment; }

}  // namespace

void GgufWriter::BeginRecord(std::string_view key, uint32_t type) {
  NM_CHECK(!file_ && !key.empty() && key.size() <= kLongestKey);
  const bool is_new = keys_.emplace(key).second;
  NM_CHECK(is_new);
  PutString(metadata_, key);
  Put<uint32_t>(metadata_, type);
  ++n_metadata_;
}

void GgufWriter::SetUint(std::string_view key, uint32_t value) {
  BeginRecord(key, kTypeU32);
  Put(metadata_, value);
}

void GgufWriter::SetUint16(std::string_view key, uint16_t value) {
  BeginRecord(key, kTypeU16);
  Put(metadata_, value);
}

void GgufWriter::SetInt(std::string_view key, int32_t value) {
  BeginRecord(key, kTypeI32);
  Put(metadata_, value);
}

void GgufWriter::SetFloat(std::string_view key, float value) {
  BeginRecord(key, kTypeF32);
  Put(metadata_, value);
}

void GgufWriter::SetBool(std::string_view key, bool value) {
  BeginRecord(key, kTypeBool);
  Put<uint8_t>(metadata_, value ? 1 : 0);
}

void GgufWriter::SetString(std::string_view key, std::string_view value) {
  BeginRecord(key, kTypeString);
  PutString(metadata_, value);
}

void GgufWriter::SetStrings(std::string_view key, std::span<const std::string> values) {
  BeginRecord(key, kTypeArray);
  Put<uint32_t>(metadata_, kTypeString);
  Put<uint64_t>(metadata_, values.size());
  for (const std::string& value : values) PutString(metadata_, value);
}

void GgufWriter::SetInts(std::string_view key, std::span<const int32_t> values) {
  BeginRecord(key, kTypeArray);
  PutArray(metadata_, kTypeI32, values);
}

void GgufWriter::SetFloats(std::string_view key, std::span<const float> values) {
  BeginRecord(key, kTypeArray);
  PutArray(metadata_, kTypeF32, values);
}

void GgufWriter::AddTensor(std::string_view name, DType dtype, const Shape& shape) {
  NM_CHECK(!file_);
  const bool is_new = names_.emplace(name).second;
  NM_CHECK(is_new);
  if (first_error_) return;
  const auto fail = [&](std::string_view why) {
    first_error_ = MakeError(Code::kInvalidArgument, "tensor '{}': {} {}: {}", Printable(name), Info(dtype).name,
                             shape.ToString(), why);
  };
  if (name.empty() || name.size() > kLongestTensorName) {
    return fail(fmt::format("name of {} bytes, wanted 1 to {}", name.size(), kLongestTensorName));
  }
  if (shape.rank < 1 || shape.rank > kMaxRank) return fail(fmt::format("wanted 1 to {} dimensions", kMaxRank));
  for (size_t i = 0; i < shape.rank; ++i) {
    if (shape.dims[i] == 0) return fail(fmt::format("dimension {} is 0", i));
  }
  const auto size_bytes = ByteSize(dtype, shape);
  if (!size_bytes.ok()) return fail(size_bytes.error().message);
  const auto end = CheckedAdd(data_bytes_, *size_bytes);
  if (!end.ok() || *end > INT64_MAX) return fail("the file is larger than 2^63 bytes");
  tensors_.push_back({std::string(name), dtype, shape, data_bytes_, *size_bytes});
  data_bytes_ = *end + Padding(*end);
}

Status GgufWriter::Begin(const std::string& path) {
  NM_CHECK(!file_);
  path_ = path;
  if (first_error_) return MakeError(first_error_->code, "{}: {}", Printable(path, 1000), first_error_->message);
  std::string header = "GGUF";
  Put<uint32_t>(header, 3);
  Put<uint64_t>(header, tensors_.size());
  Put<uint64_t>(header, n_metadata_);
  header += metadata_;
  for (const TensorRecord& tensor : tensors_) {
    PutString(header, tensor.name);
    Put<uint32_t>(header, static_cast<uint32_t>(tensor.shape.rank));
    for (size_t i = tensor.shape.rank; i-- > 0;) Put<uint64_t>(header, tensor.shape.dims[i]);
    Put<uint32_t>(header, Info(tensor.dtype).gguf_type);
    Put<uint64_t>(header, tensor.offset);
  }
  header.append(Padding(header.size()), '\0');
  NM_TRY_VAR(AtomicFile file, AtomicFile::Create(path));
  NM_TRY(file.Append(header));
  file_.emplace(std::move(file));
  return Ok{};
}

Status GgufWriter::WriteTensorBytes(std::span<const std::byte> bytes) {
  NM_CHECK(file_.has_value());
  if (current_ == tensors_.size()) {
    return MakeError(Code::kInvalidArgument, "{}: {} bytes after the last tensor", Printable(path_, 1000),
                     bytes.size());
  }
  const TensorRecord& tensor = tensors_[current_];
  if (bytes.size() > tensor.size_bytes - written_bytes_) {
    return MakeError(Code::kInvalidArgument, "{}: tensor '{}': {} bytes, wanted {}", Printable(path_, 1000),
                     Printable(tensor.name), written_bytes_ + bytes.size(), tensor.size_bytes);
  }
  NM_TRY(file_->Append(bytes));
  written_bytes_ += bytes.size();
  if (written_bytes_ < tensor.size_bytes) return Ok{};
  ++current_;
  written_bytes_ = 0;
  return file_->AppendZeros(Padding(tensor.size_bytes));
}

Status GgufWriter::Finish() {
  NM_CHECK(file_.has_value());
  if (current_ < tensors_.size()) {
    return MakeError(Code::kInvalidArgument, "{}: tensor '{}': {} bytes, wanted {}", Printable(path_, 1000),
                     Printable(tensors_[current_].name), written_bytes_, tensors_[current_].size_bytes);
  }
  return file_->Commit();
}

}  // namespace npumoe
