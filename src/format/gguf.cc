// SPDX-License-Identifier: Apache-2.0
#include "format/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/checked_math.h"
#include "format/foreign.h"
#include "format/printable.h"

namespace npumoe {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are read as little endian");

// Limits of the GGUF specification, except where assumed.
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxTensorNameBytes = 64;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 65536;  // assumed: the largest page size in use
constexpr uint64_t kMinKeyValueBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

enum class ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// The least bytes an element of an array takes, by ValueType; a string is at least its length word, and arrays are no
// elements.
constexpr std::array<uint8_t, 13> kMinElementBytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};

struct ForeignType {
  uint32_t id;
  std::string_view name;
};

// Tensor types of GGUF that have a name but no kernels here, for a better message than a number.
constexpr std::array kForeignTypes = {
    ForeignType{9, "Q8_1"},      ForeignType{15, "Q8_K"},  ForeignType{16, "IQ2_XXS"},  ForeignType{17, "IQ2_XS"},
    ForeignType{18, "IQ3_XXS"},  ForeignType{19, "IQ1_S"}, ForeignType{21, "IQ3_S"},    ForeignType{22, "IQ2_S"},
    ForeignType{24, "I8"},       ForeignType{25, "I16"},   ForeignType{26, "I32"},      ForeignType{27, "I64"},
    ForeignType{28, "F64"},      ForeignType{29, "IQ1_M"}, ForeignType{31, "Q4_0_4_4"}, ForeignType{32, "Q4_0_4_8"},
    ForeignType{33, "Q4_0_8_8"}, ForeignType{34, "TQ1_0"}, ForeignType{35, "TQ2_0"},
};

std::string TypeText(uint32_t id) {
  for (const ForeignType& type : kForeignTypes) {
    if (type.id == id) return fmt::format("{} ({})", id, type.name);
  }
  return fmt::format("{}", id);
}

std::string SupportedTypes() {
  std::string names;
  for (size_t i = 0; i < kDTypeCount; ++i) {
    names += (i == 0 ? "" : " ");
    names += Info(static_cast<DType>(i)).name;
  }
  return names;
}

// Reads one file front to back. Every count and length is compared with the bytes that are left before it is used.
class Parser {
 public:
  Parser(std::span<const std::byte> bytes, std::string_view name) : bytes_(bytes), name_(Printable(name, 1000)) {}

  Result<GgufContents> Parse();

 private:
  struct TensorRecord {
    std::string_view name;
    DType dtype;
    Shape shape;
    uint64_t offset;
    uint64_t size_bytes;
  };

  template <typename... Args>
  Error Corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return MakeError(Code::kCorruptFile, "{}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }

  uint64_t left() const { return bytes_.size() - at_; }

  // The bytes may lie at any address: copy, never cast. Needs left() >= sizeof(T).
  template <typename T>
  T Take() {
    NM_DCHECK(left() >= sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  // `what()` is the subject of a message. It is made only when there is one: a file may have a million records, and
  // making a name printable takes longer than reading it.
  template <typename T, typename What>
  Result<T> Read(const What& what) {
    if (left() < sizeof(T)) return Corrupt("file ends at byte {} inside {}", bytes_.size(), what());
    return Take<T>();
  }

  template <typename What>
  Result<std::string_view> ReadString(const What& what);
  Status ReadHeader();
  Status ReadMetadata();
  Result<GgufValue> ReadValue(ValueType type, const std::string& key);
  Result<GgufArray> ReadArray(const std::string& key);
  Result<GgufArray> ReadBools(uint64_t count, const std::string& key);
  Result<GgufArray> ReadStrings(uint64_t count, const std::string& key);
  template <typename File, typename Wide>
  GgufArray ReadNumbers(uint64_t count);
  template <typename File, typename Wide>
  Result<GgufValue> ReadNumber(const std::string& key);
  Result<uint64_t> Alignment() const;
  Result<TensorRecord> ReadTensor(uint64_t index);
  template <typename What>
  Result<Shape> ReadShape(const What& what);
  Status ReadTensors();
  Status PlaceTensors(const std::vector<TensorRecord>& records);

  std::span<const std::byte> bytes_;
  std::string name_;
  size_t at_ = 0;
  uint64_t n_tensors_ = 0;
  uint64_t n_metadata_ = 0;
  GgufContents contents_;
};

template <typename What>
Result<std::string_view> Parser::ReadString(const What& what) {
  NM_TRY_VAR(const uint64_t length, Read<uint64_t>(what));
  if (length > left()) return Corrupt("{} has {} bytes, file has {} left", what(), length, left());
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
  at_ += length;
  return text;
}

Status Parser::ReadHeader() {
  if (bytes_.empty()) return Corrupt("file is empty");
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()), std::min<size_t>(bytes_.size(), 4));
  if (!std::string_view("GGUF").starts_with(text)) {
    if (const auto foreign = DescribeForeign(bytes_)) return Corrupt("not a GGUF file: {}", *foreign);
    return Corrupt("not a GGUF file: starts with '{}', wanted 'GGUF'", Printable(text));
  }
  if (bytes_.size() < 24) return Corrupt("file ends at byte {} inside the header of 24 bytes", bytes_.size());
  at_ = 4;
  const auto version = Take<uint32_t>();
  if (version != 0 && (version & 0xffffu) == 0) {
    return MakeError(Code::kUnsupported, "{}: file has the other byte order (big endian), wanted little endian", name_);
  }
  if (version != 2 && version != 3) {
    return MakeError(Code::kUnsupported, "{}: GGUF version {}, wanted 2 or 3", name_, version);
  }
  contents_.version = version;
  n_tensors_ = Take<uint64_t>();
  n_metadata_ = Take<uint64_t>();
  if (n_metadata_ > left() / kMinKeyValueBytes) {
    return Corrupt("{} metadata records do not fit into the {} bytes after the header", n_metadata_, left());
  }
  if (n_tensors_ > left() / kMinTensorBytes) {
    return Corrupt("{} tensor records do not fit into the {} bytes after the header", n_tensors_, left());
  }
  return Ok{};
}

template <typename File, typename Wide>
GgufArray Parser::ReadNumbers(uint64_t count) {
  std::vector<Wide> values(count);
  const std::byte* from = bytes_.data() + at_;
  for (uint64_t i = 0; i < count; ++i) {
    File value;
    std::memcpy(&value, from + i * sizeof(File), sizeof(File));
    values[i] = static_cast<Wide>(value);
  }
  at_ += count * sizeof(File);
  return values;
}

template <typename File, typename Wide>
Result<GgufValue> Parser::ReadNumber(const std::string& key) {
  NM_TRY_VAR(const File value, Read<File>([&] { return "the value of key '" + Printable(key) + "'"; }));
  return GgufValue(static_cast<Wide>(value));
}

Result<GgufArray> Parser::ReadBools(uint64_t count, const std::string& key) {
  std::vector<bool> values(count);
  for (uint64_t i = 0; i < count; ++i) {
    const auto value = Take<uint8_t>();
    if (value > 1) return Corrupt("key '{}': bool {} is {}, wanted 0 or 1", Printable(key), i, value);
    values[i] = value == 1;
  }
  return GgufArray(std::move(values));
}

Result<GgufArray> Parser::ReadStrings(uint64_t count, const std::string& key) {
  std::vector<std::string_view> values;
  values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    // Vocabularies have hundreds of thousands of entries: the text of an error is made only when there is one.
    const uint64_t length = left() < 8 ? UINT64_MAX : Take<uint64_t>();
    if (length > left()) {
      return Corrupt("key '{}': string {} of {} runs past the end of the file ({} bytes)", Printable(key), i, count,
                     bytes_.size());
    }
    values.emplace_back(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
  }
  return GgufArray(std::move(values));
}

Result<GgufArray> Parser::ReadArray(const std::string& key) {
  const auto what = [&] { return "the array of key '" + Printable(key) + "'"; };
  NM_TRY_VAR(const auto type_id, Read<uint32_t>(what));
  NM_TRY_VAR(const auto count, Read<uint64_t>(what));
  const auto type = static_cast<ValueType>(type_id);
  if (type == ValueType::kArray) return Corrupt("key '{}': arrays of arrays are not supported", Printable(key));
  const uint64_t min_bytes = type_id < kMinElementBytes.size() ? kMinElementBytes[type_id] : 0;
  if (min_bytes == 0) return Corrupt("key '{}': array element type {}, wanted 0 to 12", Printable(key), type_id);
  if (count > left() / min_bytes) {
    return Corrupt("key '{}': array of {} elements of at least {} bytes, file has {} bytes left", Printable(key), count,
                   min_bytes, left());
  }
  switch (type) {
    case ValueType::kU8:
      return ReadNumbers<uint8_t, uint64_t>(count);
    case ValueType::kI8:
      return ReadNumbers<int8_t, int64_t>(count);
    case ValueType::kU16:
      return ReadNumbers<uint16_t, uint64_t>(count);
    case ValueType::kI16:
      return ReadNumbers<int16_t, int64_t>(count);
    case ValueType::kU32:
      return ReadNumbers<uint32_t, uint64_t>(count);
    case ValueType::kI32:
      return ReadNumbers<int32_t, int64_t>(count);
    case ValueType::kF32:
      return ReadNumbers<float, double>(count);
    case ValueType::kU64:
      return ReadNumbers<uint64_t, uint64_t>(count);
    case ValueType::kI64:
      return ReadNumbers<int64_t, int64_t>(count);
    case ValueType::kF64:
      return ReadNumbers<double, double>(count);
    case ValueType::kBool:
      return ReadBools(count, key);
    case ValueType::kString:
      return ReadStrings(count, key);
    case ValueType::kArray:
      break;
  }
  NM_CHECK(false);
  return GgufArray{};
}

Result<GgufValue> Parser::ReadValue(ValueType type, const std::string& key) {
  switch (type) {
    case ValueType::kU8:
      return ReadNumber<uint8_t, uint64_t>(key);
    case ValueType::kI8:
      return ReadNumber<int8_t, int64_t>(key);
    case ValueType::kU16:
      return ReadNumber<uint16_t, uint64_t>(key);
    case ValueType::kI16:
      return ReadNumber<int16_t, int64_t>(key);
    case ValueType::kU32:
      return ReadNumber<uint32_t, uint64_t>(key);
    case ValueType::kI32:
      return ReadNumber<int32_t, int64_t>(key);
    case ValueType::kF32:
      return ReadNumber<float, double>(key);
    case ValueType::kU64:
      return ReadNumber<uint64_t, uint64_t>(key);
    case ValueType::kI64:
      return ReadNumber<int64_t, int64_t>(key);
    case ValueType::kF64:
      return ReadNumber<double, double>(key);
    case ValueType::kBool: {
      NM_TRY_VAR(const auto value, Read<uint8_t>([&] { return "the value of key '" + Printable(key) + "'"; }));
      if (value > 1) return Corrupt("key '{}': bool is {}, wanted 0 or 1", Printable(key), value);
      return GgufValue(value == 1);
    }
    case ValueType::kString: {
      NM_TRY_VAR(const auto text, ReadString([&] { return "the string of key '" + Printable(key) + "'"; }));
      return GgufValue(text);
    }
    case ValueType::kArray: {
      NM_TRY_VAR(auto array, ReadArray(key));
      return GgufValue(std::move(array));
    }
  }
  return Corrupt("key '{}': value type {}, wanted 0 to 12", Printable(key), static_cast<uint32_t>(type));
}

Status Parser::ReadMetadata() {
  for (uint64_t i = 0; i < n_metadata_; ++i) {
    const auto what = [&] { return fmt::format("metadata record {} of {}", i, n_metadata_); };
    NM_TRY_VAR(const auto key_text, ReadString([&] { return "the key of " + what(); }));
    if (key_text.empty()) return Corrupt("{} has an empty key", what());
    if (key_text.size() > kMaxKeyBytes) {
      return Corrupt("the key of {} has {} bytes, wanted at most {}", what(), key_text.size(), kMaxKeyBytes);
    }
    const auto [record, is_new] = contents_.metadata.try_emplace(std::string(key_text));
    const std::string& key = record->first;
    if (!is_new) return Corrupt("key '{}' occurs twice", Printable(key));
    NM_TRY_VAR(const auto type_id, Read<uint32_t>([&] { return "the type of key '" + Printable(key) + "'"; }));
    NM_TRY_VAR(record->second, ReadValue(static_cast<ValueType>(type_id), key));
  }
  return Ok{};
}

Result<uint64_t> Parser::Alignment() const {
  const auto it = contents_.metadata.find("general.alignment");
  if (it == contents_.metadata.end()) return kDefaultAlignment;
  const uint64_t* const alignment = std::get_if<uint64_t>(&it->second);
  if (alignment == nullptr) return Corrupt("general.alignment is not an unsigned integer");
  if (!std::has_single_bit(*alignment) || *alignment > kMaxAlignment) {
    return Corrupt("general.alignment {}, wanted a power of two up to {}", *alignment, kMaxAlignment);
  }
  return *alignment;
}

template <typename What>
Result<Shape> Parser::ReadShape(const What& what) {
  NM_TRY_VAR(const auto n_dims, Read<uint32_t>(what));
  if (n_dims == 0 || n_dims > kMaxRank) return Corrupt("{}: {} dimensions, wanted 1 to {}", what(), n_dims, kMaxRank);
  Shape shape;
  shape.rank = n_dims;
  size_t n_elems = 1;
  for (uint32_t i = 0; i < n_dims; ++i) {
    NM_TRY_VAR(const auto extent, Read<uint64_t>(what));
    if (extent == 0) return Corrupt("{}: dimension {} is 0", what(), i);
    shape.dims[n_dims - 1 - i] = extent;  // the file lists the innermost dimension first
    const auto product = CheckedMul(n_elems, extent);
    if (!product.ok() || *product > INT64_MAX) return Corrupt("{}: dimension {} of {} overflows", what(), i, extent);
    n_elems = *product;
  }
  return shape;
}

Result<Parser::TensorRecord> Parser::ReadTensor(uint64_t index) {
  const auto number = [&] { return fmt::format("tensor {} of {}", index, n_tensors_); };
  TensorRecord record{};
  NM_TRY_VAR(record.name, ReadString([&] { return "the name of " + number(); }));
  if (record.name.empty()) return Corrupt("{} has an empty name", number());
  if (record.name.size() > kMaxTensorNameBytes) {
    return Corrupt("the name of {} has {} bytes, wanted at most {}", number(), record.name.size(), kMaxTensorNameBytes);
  }
  const auto what = [&] { return "tensor '" + Printable(record.name) + "'"; };
  NM_TRY_VAR(record.shape, ReadShape(what));
  NM_TRY_VAR(const auto type_id, Read<uint32_t>(what));
  NM_TRY_VAR(record.offset, Read<uint64_t>(what));
  if (record.offset > bytes_.size()) {
    return Corrupt("{}: offset {} lies outside the file of {} bytes", what(), record.offset, bytes_.size());
  }
  const auto dtype = DTypeFromGguf(type_id);
  if (!dtype) {
    return MakeError(Code::kUnsupported, "{}: {}: tensor type {} is not supported, wanted one of {}", name_, what(),
                     TypeText(type_id), SupportedTypes());
  }
  record.dtype = *dtype;
  const auto size_bytes = ByteSize(*dtype, record.shape);
  if (!size_bytes.ok()) return Corrupt("{}: {}", what(), size_bytes.error().message);
  record.size_bytes = *size_bytes;
  if (record.size_bytes > bytes_.size()) {
    return Corrupt("{}: {} {} takes {} bytes, file has {}", what(), Info(*dtype).name, record.shape.ToString(),
                   record.size_bytes, bytes_.size());
  }
  return record;
}

Status Parser::ReadTensors() {
  std::vector<TensorRecord> records;
  records.reserve(n_tensors_);
  for (uint64_t i = 0; i < n_tensors_; ++i) {
    NM_TRY_VAR(const auto record, ReadTensor(i));
    records.push_back(record);
  }
  return PlaceTensors(records);
}

// Like the format's reference reader, wants each tensor to start where the one before ends, rounded up. A file with
// gaps was written with another alignment, and its data would be read from the wrong place.
Status Parser::PlaceTensors(const std::vector<TensorRecord>& records) {
  NM_TRY_VAR(const uint64_t alignment, Alignment());
  // Sizes and offsets are at most the file's size here, so that rounding them up cannot overflow.
  const auto round_up = [alignment](uint64_t n) { return (n + alignment - 1) & ~(alignment - 1); };
  contents_.data_offset = round_up(at_);
  uint64_t next = 0;  // from the start of the data
  uint64_t end = 0;
  for (const TensorRecord& record : records) {
    const auto what = [&] { return "tensor '" + Printable(record.name) + "'"; };
    if (record.offset != next) {
      return Corrupt("{}: data offset {}, wanted {} (after the tensor before it, alignment {})", what(), record.offset,
                     next, alignment);
    }
    end = contents_.data_offset + record.offset + record.size_bytes;
    if (end > bytes_.size()) {
      return Corrupt("{}: data ends at byte {}, file has {}: it is cut off", what(), end, bytes_.size());
    }
    next = round_up(record.offset + record.size_bytes);
    const TensorView view{record.dtype, record.shape, bytes_.data() + contents_.data_offset + record.offset};
    if (!contents_.tensors.emplace(record.name, view).second) return Corrupt("{} occurs twice", what());
  }
  // Some writers leave out the padding after the last tensor, but none writes a part of it.
  if (!records.empty() && bytes_.size() > end && bytes_.size() < contents_.data_offset + next) {
    return Corrupt("file ends at byte {} inside the padding after the last tensor, wanted {}: it is cut off",
                   bytes_.size(), contents_.data_offset + next);
  }
  return Ok{};
}

Result<GgufContents> Parser::Parse() {
  NM_TRY(ReadHeader());
  NM_TRY(ReadMetadata());
  NM_TRY(ReadTensors());
  return std::move(contents_);
}

}  // namespace

Result<GgufContents> ParseGguf(std::span<const std::byte> bytes, std::string_view name) {
  return Parser(bytes, name).Parse();
}

}  // namespace npumoe
