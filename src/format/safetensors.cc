// SPDX-License-Identifier: Apache-2.0
#include "format/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/files.h"
#include "format/foreign.h"
#include "format/printable.h"
#include "format/realign.h"
#include "format/safetensors_json.h"

namespace npumoe {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are read as little endian");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kMaxIndexBytes = 100'000'000;     // assumed: the same for the index of a folder

std::string Where(std::string_view path) { return Printable(path, 1000); }

std::optional<DType> DTypeFromSafetensors(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (Info(dtype).name == name) return dtype;
  }
  return std::nullopt;
}

// The JSON text and where the data begins.
struct Frame {
  std::string_view header;
  std::span<const std::byte> data;
};

Result<Frame> ParseFrame(std::span<const std::byte> bytes, std::string_view name) {
  if (bytes.empty()) return MakeError(Code::kCorruptFile, "{}: file is empty", Where(name));
  uint64_t length = UINT64_MAX;
  if (bytes.size() >= kLengthBytes) std::memcpy(&length, bytes.data(), kLengthBytes);
  if (bytes.size() < kLengthBytes || length > bytes.size() - kLengthBytes) {
    if (const auto foreign = DescribeForeign(bytes)) {
      return MakeError(Code::kCorruptFile, "{}: not a safetensors file: {}", Where(name), *foreign);
    }
  }
  if (bytes.size() < kLengthBytes) {
    return MakeError(Code::kCorruptFile, "{}: file ends at byte {} inside the header's length of 8 bytes", Where(name),
                     bytes.size());
  }
  if (length > kMaxHeaderBytes) {
    return MakeError(Code::kCorruptFile, "{}: header of {} bytes, wanted at most {}", Where(name), length,
                     kMaxHeaderBytes);
  }
  if (length > bytes.size() - kLengthBytes) {
    return MakeError(Code::kCorruptFile, "{}: header of {} bytes, file has {} after the length", Where(name), length,
                     bytes.size() - kLengthBytes);
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  if (!header.starts_with('{')) {
    return MakeError(Code::kCorruptFile, "{}: header starts with '{}', wanted '{{'", Where(name),
                     Printable(header.substr(0, 1)));
  }
  return Frame{header, bytes.subspan(kLengthBytes + length)};
}

// Offsets are checked for every tensor before anything depends on a dtype: begin <= end <= data, no gap, no overlap,
// nothing left over.
Status CheckOffsets(const SafetensorsHeader& header, uint64_t data_bytes, std::string_view name) {
  std::vector<std::pair<std::pair<uint64_t, uint64_t>, const SafetensorsEntry*>> ranges;
  ranges.reserve(header.entries.size());
  for (const SafetensorsEntry& entry : header.entries) {
    const std::string what = fmt::format("{}: tensor '{}'", Where(name), Printable(entry.name));
    if (!entry.dtype) return MakeError(Code::kCorruptFile, "{}: dtype is missing", what);
    if (!entry.shape) return MakeError(Code::kCorruptFile, "{}: shape is missing", what);
    if (!entry.data_offsets || entry.data_offsets->size() != 2) {
      return MakeError(Code::kCorruptFile, "{}: data_offsets has {} numbers, wanted 2", what,
                       entry.data_offsets ? entry.data_offsets->size() : 0);
    }
    const uint64_t begin = (*entry.data_offsets)[0], end = (*entry.data_offsets)[1];
    if (begin > end) return MakeError(Code::kCorruptFile, "{}: data begins at {} but ends at {}", what, begin, end);
    if (end > data_bytes) {
      return MakeError(Code::kCorruptFile, "{}: data ends at byte {}, file has {} bytes of data", what, end,
                       data_bytes);
    }
    ranges.push_back({{begin, end}, &entry});
  }
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  uint64_t next = 0;
  for (const auto& [range, entry] : ranges) {
    if (range.first != next) {
      return MakeError(Code::kCorruptFile, "{}: tensor '{}': data begins at byte {}, wanted {} (no gap, no overlap)",
                       Where(name), Printable(entry->name), range.first, next);
    }
    next = range.second;
  }
  if (next != data_bytes) {
    return MakeError(Code::kCorruptFile, "{}: tensors end at byte {}, file has {} bytes of data", Where(name), next,
                     data_bytes);
  }
  return Ok{};
}

Result<TensorView> ViewOf(const SafetensorsEntry& entry, std::span<const std::byte> data, std::string_view name) {
  const std::string what = fmt::format("{}: tensor '{}'", Where(name), Printable(entry.name));
  const auto dtype = DTypeFromSafetensors(*entry.dtype);
  if (!dtype) {
    return MakeError(Code::kUnsupported, "{}: dtype '{}' is not supported, wanted F32, F16 or BF16", what,
                     Printable(*entry.dtype));
  }
  if (entry.shape->size() > kMaxRank) {
    return MakeError(Code::kUnsupported, "{}: {} dimensions, wanted at most {}", what, entry.shape->size(), kMaxRank);
  }
  Shape shape;
  shape.rank = entry.shape->size();
  std::copy(entry.shape->begin(), entry.shape->end(), shape.dims.begin());
  const auto size_bytes = ByteSize(*dtype, shape);
  if (!size_bytes.ok()) return MakeError(Code::kCorruptFile, "{}: {}", what, size_bytes.error().message);
  const uint64_t begin = (*entry.data_offsets)[0], end = (*entry.data_offsets)[1];
  if (*size_bytes != end - begin) {
    return MakeError(Code::kCorruptFile, "{}: {} {} takes {} bytes, data_offsets span {}", what, *entry.dtype,
                     shape.ToString(), *size_bytes, end - begin);
  }
  return TensorView{*dtype, shape, data.data() + begin};
}

// Shards lie beside their index: anything that could lead elsewhere is refused.
bool IsPlainFileName(std::string_view file) {
  return !file.empty() && file != "." && file != ".." && file.find_first_of(std::string_view("/\\\0", 3)) == file.npos;
}

// The header's text, padded so that the data begins on a multiple of 8.
Result<std::string> HeaderText(std::span<const NamedTensor* const> tensors, const std::string& path) {
  std::string json = "{\"__metadata__\":{\"format\":\"pt\"}";  // without a format, transformers refuses the file
  uint64_t offset = 0;
  for (const NamedTensor* const named : tensors) {
    const DType dtype = named->tensor.dtype;
    const Shape& shape = named->tensor.shape;
    const std::string what = fmt::format("{}: tensor '{}'", Where(path), Printable(named->name));
    if (!DTypeFromSafetensors(Info(dtype).name)) {
      return MakeError(Code::kInvalidArgument, "{}: dtype {}, wanted F32, F16 or BF16", what, Info(dtype).name);
    }
    NM_TRY_VAR(const size_t size_bytes, ByteSize(dtype, shape));
    NM_TRY_VAR(const size_t end, CheckedAdd(offset, size_bytes));
    std::string quoted;
    try {
      quoted = nlohmann::json(named->name).dump();
    } catch (const std::exception&) {
      return MakeError(Code::kInvalidArgument, "{}: name is not UTF-8", what);
    }
    json += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", quoted, Info(dtype).name,
                        fmt::join(std::span(shape.dims).first(shape.rank), ","), offset, end);
    offset = end;
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  if (json.size() > kMaxHeaderBytes) {
    return MakeError(Code::kInvalidArgument, "{}: header of {} bytes, the format allows {}", Where(path), json.size(),
                     kMaxHeaderBytes);
  }
  return json;
}

}  // namespace

Result<SafetensorsContents> ParseSafetensors(std::span<const std::byte> bytes, std::string_view name) {
  NM_TRY_VAR(const Frame frame, ParseFrame(bytes, name));
  NM_TRY_VAR(auto header, ParseSafetensorsHeader(frame.header, fmt::format("{}: header", name)));
  NM_TRY(CheckOffsets(header, frame.data.size(), name));
  SafetensorsContents contents;
  for (SafetensorsEntry& entry : header.entries) {
    NM_TRY_VAR(const TensorView view, ViewOf(entry, frame.data, name));
    contents.tensors.emplace(std::move(entry.name), view);
  }
  contents.metadata = std::move(header.metadata);
  return contents;
}

Status SafetensorsFolder::AddFile(const std::string& path, std::span<const std::string> wanted) {
  NM_TRY_VAR(MappedFile file, MappedFile::Open(path));
  NM_TRY_VAR(const auto contents, ParseSafetensors(file.bytes(), path));
  for (const std::string& name : wanted) {
    if (!contents.tensors.contains(name)) {
      return MakeError(Code::kCorruptFile, "{}: tensor '{}' is missing, but the index says that it is here",
                       Where(path), Printable(name));
    }
  }
  for (const auto& [name, view] : contents.tensors) {
    NM_TRY_VAR(const TensorView aligned, Realigned(view, copies_));
    if (!tensors_.emplace(name, aligned).second) {
      return MakeError(Code::kCorruptFile, "{}: tensor '{}' is also in an earlier shard", Where(path), Printable(name));
    }
  }
  files_.push_back(std::move(file));
  return Ok{};
}

Result<SafetensorsFolder> SafetensorsFolder::Open(const std::string& folder) {
  const std::string index_path = folder + "/model.safetensors.index.json";
  SafetensorsFolder out;
  const auto text = ReadFile(index_path, kMaxIndexBytes);
  if (!text.ok()) {
    if (text.error().code != Code::kNotFound) return text.error();
    const Status added = out.AddFile(folder + "/model.safetensors", {});
    if (added.ok()) return out;
    if (added.error().code != Code::kNotFound) return added.error();
    return MakeError(Code::kNotFound, "{}: neither model.safetensors nor model.safetensors.index.json is there",
                     Where(folder));
  }
  if (const auto foreign = DescribeForeign(std::as_bytes(std::span(*text))); foreign && !text->starts_with('{')) {
    return MakeError(Code::kCorruptFile, "{}: {}", Where(index_path), *foreign);
  }
  NM_TRY_VAR(const auto weight_map, ParseSafetensorsIndex(*text, index_path));
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, file] : weight_map) shards[file].push_back(tensor);
  if (shards.empty()) return MakeError(Code::kCorruptFile, "{}: weight_map is empty", Where(index_path));
  for (const auto& [file, names] : shards) {
    if (!IsPlainFileName(file)) {
      return MakeError(Code::kCorruptFile, "{}: tensor '{}': file name '{}' is not a plain name", Where(index_path),
                       Printable(names.front()), Printable(file));
    }
  }
  for (const auto& [file, names] : shards) {
    const Status added = out.AddFile(folder + "/" + file, names);
    if (added.ok()) continue;
    if (added.error().code != Code::kNotFound) return added.error();
    return MakeError(Code::kNotFound, "{}: shard '{}' is missing", Where(index_path), Printable(file));
  }
  return out;
}

const TensorView* SafetensorsFolder::FindTensor(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors) {
  std::vector<const NamedTensor*> order;
  order.reserve(tensors.size());
  for (const NamedTensor& named : tensors) order.push_back(&named);
  // Wide elements first, as the reference writer does: then every tensor is aligned for its elements.
  std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const uint32_t a_bytes = Info(a->tensor.dtype).block_bytes, b_bytes = Info(b->tensor.dtype).block_bytes;
    return a_bytes != b_bytes ? a_bytes > b_bytes : a->name < b->name;
  });
  std::set<std::string_view> names{"__metadata__"};
  for (const NamedTensor* const named : order) {
    if (!names.insert(named->name).second) {
      return MakeError(Code::kInvalidArgument, "{}: tensor name '{}' is taken", Where(path), Printable(named->name));
    }
  }
  NM_TRY_VAR(const std::string header, HeaderText(order, path));
  NM_TRY_VAR(AtomicFile file, AtomicFile::Create(path));
  const uint64_t length = header.size();
  NM_TRY(file.Append(std::as_bytes(std::span(&length, 1))));
  NM_TRY(file.Append(header));
  for (const NamedTensor* const named : order) {
    NM_TRY_VAR(const size_t size_bytes, ByteSize(named->tensor.dtype, named->tensor.shape));
    NM_TRY(file.Append(std::span(named->tensor.data, size_bytes)));
  }
  return file.Commit();
}

size_t SafetensorsFolder::size_bytes() const {
  size_t total = 0;
  for (const MappedFile& file : files_) total += file.bytes().size();
  return total;
}

}  // namespace npumoe
