// SPDX-License-Identifier: Apache-2.0
#include "graph/npy.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/files.h"
#include "base/mapped_file.h"
#include "graph/array.h"
#include "graph/infer.h"
#include "graph/names.h"
#include "graph/op_run.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxHeaderBytes = 1 << 16;

struct Dtype {
  std::string_view name;  // as the header spells it
  ElemType elem;          // what it becomes
  size_t bytes;
};

constexpr Dtype kDtypes[] = {
    {"<f2", ElemType::kF16, 2}, {"<f4", ElemType::kF32, 4}, {"<f8", ElemType::kF32, 8}, {"|i1", ElemType::kI8, 1},
    {"|u1", ElemType::kU8, 1},  {"<i2", ElemType::kI16, 2}, {"<u2", ElemType::kU16, 2}, {"<i4", ElemType::kI32, 4},
    {"<u4", ElemType::kU32, 4}, {"<i8", ElemType::kI32, 8}, {"<u8", ElemType::kI32, 8}, {"|b1", ElemType::kBool, 1},
};

// The dictionary of the header, as Python writes it: 'descr': '<f4', 'fortran_order': False, 'shape': (3, 4).
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  // False when this is no such dictionary.
  bool Parse() {
    if (!Take('{')) return false;
    while (!Take('}')) {
      std::string_view key;
      if (!Text(key) || !Take(':') || !Member(key)) return false;
      if (!Take(',') && !Peek('}')) return false;
    }
    SkipSpace();
    return text_.empty() && n_members_ == 3;
  }

  std::string_view descr;
  bool fortran_order = false;
  Dims shape;

 private:
  void SkipSpace() { text_.remove_prefix(std::min(text_.find_first_not_of(" \t\n"), text_.size())); }
  bool Peek(char c) {
    SkipSpace();
    return !text_.empty() && text_[0] == c;
  }
  bool Take(char c) {
    if (!Peek(c)) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool Text(std::string_view& out) {
    for (const char quote : {'\'', '"'}) {
      if (!Take(quote)) continue;
      const size_t end = text_.find(quote);
      if (end == std::string_view::npos) return false;
      out = text_.substr(0, end);
      text_.remove_prefix(end + 1);
      return true;
    }
    return false;
  }
  bool Word(std::string_view word) {
    SkipSpace();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  bool Member(std::string_view key) {
    ++n_members_;
    if (key == "descr") return Text(descr);
    if (key == "shape") return Shape();
    if (key != "fortran_order") return false;
    fortran_order = Word("True");
    return fortran_order || Word("False");
  }
  bool Shape() {
    if (!Take('(')) return false;
    while (!Take(')')) {
      SkipSpace();
      size_t dim = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), dim);
      if (error != std::errc() || shape.size() > kMaxGraphRank) return false;
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      shape.push_back(dim);
      if (!Take(',') && !Peek(')')) return false;
    }
    return true;
  }

  std::string_view text_;
  int n_members_ = 0;
};

template <typename T>
T LoadAt(std::span<const std::byte> data, size_t index) {
  T value;
  std::memcpy(&value, data.data() + index * sizeof(T), sizeof(T));
  return value;
}

// Values of 64 bits as int32. False when one does not fit.
bool LoadWide(bool is_signed, std::span<const std::byte> data, std::vector<int64_t>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = LoadAt<int64_t>(data, i);
    const bool fits = out[i] <= std::numeric_limits<int32_t>::max() &&
                      out[i] >= (is_signed ? int64_t{std::numeric_limits<int32_t>::min()} : 0);
    if (!fits) return false;
  }
  return true;
}

// Elements in file order.
Result<Array> Load(const Dtype& dtype, Dims shape, std::span<const std::byte> data, std::string_view subject) {
  Array array{{dtype.elem, std::move(shape)}, {}, {}};
  const size_t n = array.type.elems();
  if (dtype.name == "<f8") {
    array.floats.resize(n);
    for (size_t i = 0; i < n; ++i) array.floats[i] = static_cast<float>(LoadAt<double>(data, i));
    return array;
  }
  if (dtype.name == "<i8" || dtype.name == "<u8") {
    array.ints.resize(n);
    if (LoadWide(dtype.name == "<i8", data, array.ints)) return array;
    return MakeError(Code::kUnsupported, "{}: a value of type {} does not fit int32", subject, dtype.name);
  }
  return ArrayOf({array.type, {data.begin(), data.end()}});
}

// Column-major elements in row-major order.
Array FromFortranOrder(const Array& array) {
  Array out = array;
  Dims strides(array.type.dims.size());
  size_t stride = 1;
  for (size_t axis = 0; axis < strides.size(); ++axis) {
    strides[axis] = stride;
    stride *= array.type.dims[axis];
  }
  ForEachIndex(array.type.dims,
               [&](size_t flat, std::span<const size_t> at) { CopyElem(array, OffsetOf(at, strides), out, flat); });
  return out;
}

Result<std::string_view> HeaderText(std::span<const std::byte> bytes, std::string_view subject, size_t& data_offset) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kMagic)) return MakeError(Code::kCorruptFile, "{}: not an .npy file", subject);
  if (text.size() < kMagic.size() + 6) return MakeError(Code::kCorruptFile, "{}: ends inside its header", subject);
  const auto version = static_cast<uint8_t>(text[kMagic.size()]);
  if (version < 1 || version > 3) {
    return MakeError(Code::kUnsupported, "{}: .npy version {}, wanted 1 to 3", subject, version);
  }
  const size_t begin = kMagic.size() + (version == 1 ? 4 : 6);
  size_t length = 0;
  for (size_t at = begin; at-- > kMagic.size() + 2;) length = length << 8 | static_cast<uint8_t>(text[at]);
  if (length > kMaxHeaderBytes || text.size() - begin < length) {
    return MakeError(Code::kCorruptFile, "{}: header of {} bytes, the file has {}", subject, length, text.size());
  }
  data_offset = begin + length;
  return text.substr(begin, length);
}

std::string_view DtypeName(ElemType elem) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.elem == elem) return dtype.name;
  }
  return {};
}

template <typename T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

Result<Array> ParseNpy(std::span<const std::byte> bytes, std::string_view subject) {
  size_t data_offset = 0;
  NM_TRY_VAR(const std::string_view text, HeaderText(bytes, subject, data_offset));
  HeaderParser header(text);
  if (!header.Parse()) {
    return MakeError(Code::kCorruptFile, "{}: header is not a dictionary of descr, fortran_order and shape", subject);
  }
  const auto* dtype = std::ranges::find(kDtypes, header.descr, &Dtype::name);
  if (dtype == std::end(kDtypes)) {
    return MakeError(Code::kUnsupported, "{}: type '{}', wanted little-endian numbers such as <f2, <f4 or <i4", subject,
                     ShownName(header.descr));
  }
  NM_TRY(CheckType({dtype->elem, header.shape}, kMaxGraphRank, subject));
  const std::span<const std::byte> data = bytes.subspan(data_offset);
  const size_t wanted = ProductOf(header.shape) * dtype->bytes;
  if (data.size() != wanted) {
    return MakeError(Code::kCorruptFile, "{}: {} bytes of data, shape [{}] of {} needs {}", subject, data.size(),
                     fmt::join(header.shape, ", "), dtype->name, wanted);
  }
  NM_TRY_VAR(Array array, Load(*dtype, header.shape, data, subject));
  return header.fortran_order ? FromFortranOrder(array) : array;
}

Result<Array> ReadNpy(const std::string& path) {
  NM_TRY_VAR(const MappedFile file, MappedFile::Open(path));
  return ParseNpy(file.bytes(), path);
}

Result<Array> FitArray(Array array, const ValueType& wanted, std::string_view subject) {
  const bool floats = IsFloat(array.type.elem) && IsFloat(wanted.elem);
  const bool ints = IsInt(array.type.elem) && IsInt(wanted.elem);
  if (array.type.dims != wanted.dims || !(floats || ints || array.type.elem == wanted.elem)) {
    return MakeError(Code::kInvalidArgument, "{}: is {}, wanted {}", subject, array.type.ToString(), wanted.ToString());
  }
  if (wanted.elem == ElemType::kF16) {
    for (float& v : array.floats) v = F16ToF32(F32ToF16(v));
  }
  for (const int64_t v : array.ints) {
    if (WrapInt(wanted.elem, v) != v) {
      return MakeError(Code::kInvalidArgument, "{}: value {} does not fit {}", subject, v, ToString(wanted.elem));
    }
  }
  array.type = wanted;
  return array;
}

Status WriteNpy(const std::string& path, const Array& array) {
  const std::string_view dtype = DtypeName(array.type.elem);
  if (dtype.empty()) return MakeError(Code::kUnsupported, "{}: no .npy type for {}", path, array.type.ToString());
  const bool one = array.type.dims.size() == 1;
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", dtype,
                                   fmt::join(array.type.dims, ", "), one ? "," : "");
  // The data begin at a multiple of 64.
  const size_t before = kMagic.size() + 4;
  header.append(63 - (before + header.size()) % 64, ' ');
  header += '\n';
  std::string bytes(kMagic);
  bytes.append("\x01\x00", 2);
  Append(bytes, static_cast<uint16_t>(header.size()));
  bytes += header;
  for (const float v : array.floats) {
    if (array.type.elem == ElemType::kF16) {
      Append(bytes, F32ToF16(v));
    } else {
      Append(bytes, v);
    }
  }
  const size_t width = BitsOf(array.type.elem) / 8;
  for (const int64_t v : array.ints) bytes.append(reinterpret_cast<const char*>(&v), width);  // little endian
  return WriteFileAtomic(path, bytes);
}

}  // namespace npumoe
