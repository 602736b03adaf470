// SPDX-License-Identifier: Apache-2.0
#include "model/random_model.h"

#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/check.h"
#include "base/files.h"
#include "base/mapped_file.h"
#include "format/gguf_writer.h"
#include "format/safetensors.h"
#include "model/checkpoint_metadata.h"
#include "model/checkpoint_plan.h"
#include "tensor/quantize.h"

namespace npumoe {
namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;  // made and written together
constexpr size_t kRowsPerTask = 16;
constexpr uint32_t kMaxSplits = 999;

using Emit = std::function<Status(std::span<const std::byte>)>;

// Index of the row in Hugging Face order that GGUF's llama order has at `row`: there, the two halves of each head
// alternate.
size_t UninterleavedRow(size_t row, size_t head_dim) {
  const size_t within = row % head_dim;
  return row - within + within % 2 * (head_dim / 2) + within / 2;
}

class TensorFiller {
 public:
  TensorFiller(const RandomModelSpec& spec, ThreadPool& threads)
      : rows_(spec.seed), threads_(threads), keep_going_(spec.keep_going) {}

  // Sends the tensor's bytes to `emit` in pieces.
  Status Fill(const PlannedTensor& tensor, const Emit& emit) {
    if (tensor.fill == FillKind::kFixed) return emit(std::as_bytes(std::span(tensor.fixed)));
    const size_t cols = tensor.shape.inner();
    const size_t n_rows = tensor.shape.elems() / cols / tensor.seeds.size();  // of one matrix
    NM_TRY_VAR(const size_t row_bytes, RowBytes(tensor.dtype, cols));
    if (tensor.fill == FillKind::kRandom) rows_.Prepare(n_rows, cols, tensor.dtype, tensor.rule, threads_);
    scratch_.resize(threads_.n_threads());
    for (std::vector<float>& row : scratch_) row.resize(cols);
    const size_t piece_rows = std::max<size_t>(1, kPieceBytes / row_bytes);
    for (const uint64_t seed : tensor.seeds) {
      for (size_t begin = 0; begin < n_rows; begin += piece_rows) {
        if (keep_going_ && !keep_going_()) return MakeError(Code::kCancelled, "random model: stopped by the caller");
        const size_t n = std::min(piece_rows, n_rows - begin);
        piece_.resize(n * row_bytes);
        threads_.ParallelFor((n + kRowsPerTask - 1) / kRowsPerTask, [&](size_t task, size_t thread) {
          for (size_t i = task * kRowsPerTask; i < std::min(n, (task + 1) * kRowsPerTask); ++i) {
            FillRow(tensor, seed, begin + i, n_rows, scratch_[thread], piece_.data() + i * row_bytes);
          }
        });
        NM_TRY(emit(piece_));
      }
    }
    return Ok{};
  }

 private:
  void FillRow(const PlannedTensor& tensor, uint64_t seed, size_t row, size_t n_rows, std::span<float> scratch,
               std::byte* out) const {
    const size_t head_dim = tensor.interleaved_head_dim;
    const bool is_vector = tensor.shape.rank == 1;
    if (head_dim > 0 && !is_vector) row = UninterleavedRow(row, head_dim);
    if (tensor.fill == FillKind::kRandom && !(head_dim > 0 && is_vector)) {
      rows_.MakeRow(seed, row, n_rows, scratch.size(), tensor.dtype, tensor.rule, scratch, out);
      return;
    }
    FillRandom(MixSeed({seed, row}), tensor.rule, scratch);
    if (tensor.fill == FillKind::kAroundOne) {
      for (float& value : scratch) value += 1.0f;
    }
    if (tensor.fill == FillKind::kRouter) Skew(tensor.skew[row], scratch);
    if (head_dim > 0) {
      const std::vector<float> ordered(scratch.begin(), scratch.end());
      for (size_t i = 0; i < scratch.size(); ++i) scratch[i] = ordered[UninterleavedRow(i, head_dim)];
    }
    QuantizeRow(tensor.dtype, scratch, out);
  }

  // Replaces the row's own share of the common direction by `skew`.
  static void Skew(float skew, std::span<float> row) {
    const std::span<const float> common = CommonDirection();
    double dot = 0;
    for (size_t i = 0; i < row.size(); ++i) dot += static_cast<double>(row[i]) * common[i % common.size()];
    const auto change = static_cast<float>(skew - dot / static_cast<double>(row.size()));
    for (size_t i = 0; i < row.size(); ++i) row[i] += change * common[i % common.size()];
  }

  RowMaker rows_;
  ThreadPool& threads_;
  const std::function<bool()>& keep_going_;
  std::vector<std::vector<float>> scratch_;  // per thread, one row
  std::vector<std::byte> piece_;
};

// Consecutive tensors in `n` parts of about equal bytes, none empty.
std::vector<std::span<const PlannedTensor>> Partition(const std::vector<PlannedTensor>& plan, size_t n) {
  std::vector<uint64_t> end_bytes;  // of each tensor, accumulated
  uint64_t total = 0;
  for (const PlannedTensor& tensor : plan) {
    const auto bytes = ByteSize(tensor.dtype, tensor.shape);
    NM_CHECK(bytes.ok());  // extents are within Validate's caps
    end_bytes.push_back(total += bytes.value());
  }
  std::vector<std::span<const PlannedTensor>> parts;
  size_t begin = 0;
  for (size_t part = 0; part < n; ++part) {
    size_t end = begin + 1;
    const size_t last_end = plan.size() - (n - 1 - part);
    while (end < last_end && (part + 1 == n || end_bytes[end] <= total / n * (part + 1))) ++end;
    parts.emplace_back(plan.data() + begin, end - begin);
    begin = end;
  }
  return parts;
}

std::string SplitName(const std::string& stem, size_t part, size_t n, const char* extension) {
  return fmt::format("{}-{:05d}-of-{:05d}{}", stem, part + 1, n, extension);
}

// Removes what was written unless Keep is called.
class Cleanup {
 public:
  Cleanup() = default;
  Cleanup(const Cleanup&) = delete;
  Cleanup& operator=(const Cleanup&) = delete;
  ~Cleanup() {
    while (!paths_.empty()) paths_.pop_back();  // what is in a folder goes before it
  }
  void Add(std::string path) { paths_.emplace_back(std::move(path), /*is_folder=*/false); }
  void AddFolder(std::string path) { paths_.emplace_back(std::move(path), /*is_folder=*/true); }
  void Keep() {
    for (UnfinishedPath& path : paths_) path.Keep();
  }

 private:
  std::vector<UnfinishedPath> paths_;
};

uint64_t FileBytes(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : size;
}

Result<uint64_t> WriteGguf(const RandomModelSpec& spec, const Family& family, const RandomVocab& vocab,
                           const std::vector<PlannedTensor>& plan, TensorFiller& filler, const std::string& path) {
  const std::string stem = path.ends_with(".gguf") ? path.substr(0, path.size() - 5) : path;
  const auto parts = Partition(plan, spec.n_splits);
  Cleanup cleanup;
  uint64_t n_bytes = 0;
  for (size_t part = 0; part < parts.size(); ++part) {
    GgufWriter writer;
    if (part == 0) SetGgufMetadata(spec, family, vocab, writer);
    if (parts.size() > 1) {
      writer.SetUint16("split.no", static_cast<uint16_t>(part));
      writer.SetUint16("split.count", static_cast<uint16_t>(parts.size()));
      writer.SetInt("split.tensors.count", static_cast<int32_t>(plan.size()));
    }
    for (const PlannedTensor& tensor : parts[part]) writer.AddTensor(tensor.name, tensor.dtype, tensor.shape);
    const std::string file = parts.size() == 1 ? path : SplitName(stem, part, parts.size(), ".gguf");
    NM_TRY(writer.Begin(file));
    for (const PlannedTensor& tensor : parts[part]) {
      NM_TRY(filler.Fill(tensor, [&](std::span<const std::byte> bytes) { return writer.WriteTensorBytes(bytes); }));
    }
    NM_TRY(writer.Finish());
    cleanup.Add(file);
    n_bytes += FileBytes(file);
  }
  cleanup.Keep();
  return n_bytes;
}

// One safetensors file. The tensors go through a spool file, so that memory holds one piece and not the whole shard.
Status WriteShard(std::span<const PlannedTensor> tensors, TensorFiller& filler, const std::string& path) {
  const std::string spool_path = path + ".spool";
  Cleanup cleanup;
  {
    NM_TRY_VAR(AtomicFile spool, AtomicFile::Create(spool_path));
    for (const PlannedTensor& tensor : tensors) {
      NM_TRY(filler.Fill(tensor, [&](std::span<const std::byte> bytes) { return spool.Append(bytes); }));
    }
    NM_TRY(spool.Commit());
    cleanup.Add(spool_path);
  }
  NM_TRY_VAR(const MappedFile mapped, MappedFile::Open(spool_path));
  std::vector<NamedTensor> named;
  size_t offset = 0;
  for (const PlannedTensor& tensor : tensors) {
    named.push_back({tensor.name, {tensor.dtype, tensor.shape, mapped.bytes().data() + offset}});
    NM_TRY_VAR(const size_t size, ByteSize(tensor.dtype, tensor.shape));
    offset += size;
  }
  return WriteSafetensors(path, named);
}

Result<uint64_t> WriteFolder(const RandomModelSpec& spec, const Family& family, const RandomVocab& vocab,
                             const std::vector<PlannedTensor>& plan, TensorFiller& filler, const std::string& folder) {
  NM_TRY_VAR(const std::string config_json, HuggingFaceConfigJson(spec, family, vocab));
  Cleanup cleanup;
  std::error_code error;
  const bool existed = std::filesystem::exists(folder, error);
  if (existed && (!std::filesystem::is_directory(folder, error) || !std::filesystem::is_empty(folder, error))) {
    return MakeError(Code::kInvalidArgument, "{}: exists, wanted a new or empty folder", folder);
  }
  if (!existed) {
    if (!std::filesystem::create_directory(folder, error)) {
      return MakeError(Code::kIo, "{}: cannot make the folder: {}", folder, error.message());
    }
    cleanup.AddFolder(folder);
  }
  uint64_t n_bytes = 0;
  const auto parts = Partition(plan, spec.n_splits);
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  for (size_t part = 0; part < parts.size(); ++part) {
    const std::string file =
        parts.size() == 1 ? "model.safetensors" : SplitName("model", part, parts.size(), ".safetensors");
    NM_TRY(WriteShard(parts[part], filler, folder + "/" + file));
    cleanup.Add(folder + "/" + file);
    n_bytes += FileBytes(folder + "/" + file);
    for (const PlannedTensor& tensor : parts[part]) weight_map.push_back({tensor.name, file});
  }
  std::vector<std::pair<std::string, std::string>> texts = {
      {"config.json", config_json},
      {"generation_config.json", GenerationConfigJson(vocab)},
      {"tokenizer.json", RandomTokenizerJson(vocab)},
      {"tokenizer_config.json", RandomTokenizerConfigJson(vocab)}};
  if (parts.size() > 1) {
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", n_bytes}}}, {"weight_map", weight_map}};
    texts.emplace_back("model.safetensors.index.json", index.dump(2));
  }
  for (const auto& [name, text] : texts) {
    NM_TRY(WriteFileAtomic(folder + "/" + name, text));
    cleanup.Add(folder + "/" + name);
    n_bytes += text.size();
  }
  cleanup.Keep();
  return n_bytes;
}

Status CheckSpec(const RandomModelSpec& spec, const Family* family) {
  if (family == nullptr) {
    return MakeError(Code::kUnsupported, "random model: architecture '{}' with {} experts, wanted one of: {}",
                     spec.config.family, spec.config.n_experts, KnownGgufFamilies());
  }
  NM_TRY(Validate(spec.config, "random model"));
  if (!std::isfinite(spec.zipf) || std::abs(spec.zipf) > 100) {
    return MakeError(Code::kInvalidArgument, "random model: zipf {}, wanted -100 to 100", spec.zipf);
  }
  if (spec.n_splits < 1 || spec.n_splits > kMaxSplits) {
    return MakeError(Code::kInvalidArgument, "random model: {} splits, wanted 1 to {}", spec.n_splits, kMaxSplits);
  }
  const bool plain = Info(spec.matrix_dtype).block_elems == 1;
  if (spec.format == CheckpointFormat::kHuggingFace && !plain) {
    return MakeError(Code::kUnsupported, "random model: type {} in a Hugging Face folder, wanted f32, f16 or bf16",
                     Info(spec.matrix_dtype).name);
  }
  return Ok{};
}

}  // namespace

Result<uint64_t> WriteRandomModel(const RandomModelSpec& spec, const std::string& path) {
  const Family* family = FindGgufFamily(spec.config.family, spec.config.n_experts > 0);
  NM_TRY(CheckSpec(spec, family));
  NM_TRY_VAR(const RandomVocab vocab, MakeRandomVocab(spec.config.vocab_size));
  const std::vector<PlannedTensor> plan = PlanCheckpoint(spec, *family);
  if (spec.n_splits > plan.size()) {
    return MakeError(Code::kInvalidArgument, "random model: {} splits, but only {} tensors", spec.n_splits,
                     plan.size());
  }
  ThreadPool threads(std::max(1u, std::thread::hardware_concurrency()));
  TensorFiller filler(spec, threads);
  if (spec.format == CheckpointFormat::kGguf) return WriteGguf(spec, *family, vocab, plan, filler, path);
  return WriteFolder(spec, *family, vocab, plan, filler, path);
}

}  // namespace npumoe
