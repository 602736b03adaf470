// SPDX-License-Identifier: Apache-2.0
#include "engine/npu_attention.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "kernels/columns.h"
#include "moe/attention_plan.h"
#include "moe/stage_graph.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace npumoe {
namespace {

enum Input { kX, kCos, kSin, kMask, kKeyCache, kValueCache };
enum Output { kDelta, kKeys, kValues, kRouter };

}  // namespace

NpuAttention::NpuAttention(const Model& model, const Plan& plan, NpuPrograms& programs, RunClock& clock,
                           Compute& compute, AttentionBlock& attention, Ffn& ffn)
    : model_(model),
      config_(model.config()),
      plan_(plan),
      programs_(programs),
      clock_(clock),
      compute_(compute),
      attention_(attention),
      ffn_(ffn),
      permutation_(HeadPermutation(config_)),
      row_k_(size_t{config_.n_kv_heads} * config_.head_dim),
      row_v_(row_k_.size()) {
  std::vector<uint32_t> identity(permutation_.size());
  std::iota(identity.begin(), identity.end(), 0u);
  permutes_ = permutation_ != identity;
}

bool NpuAttention::IsOnNpu(uint32_t layer) const {
  return plan_.layers[layer].attention == AttentionPlace::kNpu && !programs_.attention_refused(layer);
}

NpuAttention::Rows NpuAttention::Slice(const Rows& rows, size_t first, size_t n) {
  const MatView &x = rows.x, &normed = rows.normed;
  return {rows.layer,
          rows.kv,
          rows.first_position + first,
          rows.batch_row + first,
          {x.Row(first), n, x.cols, x.stride},
          {normed.Row(first), n, normed.cols, normed.stride}};
}

NpuAttention::Done NpuAttention::RunOnNpu(const Rows& rows, Nanos begin) {
  has_logits_.assign(rows.x.rows, false);
  Done done{0, begin, 0};
  while (done.n_tokens < rows.x.rows && IsOnNpu(rows.layer)) {
    const size_t n = std::min<size_t>(plan_.chunk_tokens, rows.x.rows - done.n_tokens);
    // Run says why it could not: it meets the same chunk first.
    if (!RunChunk(Slice(rows, done.n_tokens, n), done.n_tokens, /*alone=*/false, done).ok()) break;
    done.n_tokens += n;
  }
  return done;
}

void NpuAttention::Run(const Rows& rows, size_t n_done) {
  if (n_done == 0) has_logits_.assign(rows.x.rows, false);
  for (size_t first = n_done; first < rows.x.rows; first += plan_.chunk_tokens) {
    const Rows chunk = Slice(rows, first, std::min<size_t>(plan_.chunk_tokens, rows.x.rows - first));
    if (IsOnNpu(rows.layer)) {
      Done done{0, clock_.now(), 0};
      const Status status = RunChunk(chunk, first, /*alone=*/true, done);
      clock_.WaitUntil(done.end);
      if (status.ok()) continue;
      if (!programs_.attention_refused(rows.layer)) clock_.FallBack(status.error().message);
    }
    RunOnCpu(chunk);
  }
}

size_t NpuAttention::buffer_bytes() const {
  size_t halves = 0;
  for (const auto& input : inputs_) halves += input.capacity();
  for (const auto& output : outputs_) halves += output.capacity();
  return halves * sizeof(uint16_t);
}

void NpuAttention::FillMask(size_t position, size_t kv_length) {
  const size_t c = plan_.chunk_tokens, total = kv_length + c, window = config_.sliding_window;
  inputs_[kMask].assign(c * total, F32ToF16(kMaskedScore));
  for (size_t row = 0; row < c; ++row) {
    const size_t here = position + row;
    const size_t first = window > 0 && here >= window ? here - window + 1 : 0;
    uint16_t* const mask = inputs_[kMask].data() + row * total;
    if (first < position) std::fill(mask + first, mask + position, uint16_t{0});
    std::fill(mask + kv_length + std::max(first, position) - position, mask + kv_length + row + 1, uint16_t{0});
  }
}

// Earlier keys and values, zeros up to the bucket's length.
void NpuAttention::FillCache(const KvView& kv, size_t position, size_t kv_length, bool alone) {
  const size_t head_dim = config_.head_dim, n_kv = config_.n_kv_heads;
  for (const Input which : {kKeyCache, kValueCache}) {
    std::vector<uint16_t>& cache = inputs_[which];
    cache.assign(n_kv * kv_length * head_dim, 0);
    const std::byte* const stored = which == kKeyCache ? kv.keys : kv.values;
    const bool permutes = which == kKeyCache && permutes_;
    const auto fill = [&](size_t head, size_t) {
      uint16_t* const out = cache.data() + head * kv_length * head_dim;
      const std::byte* const rows = stored + head * kv.capacity * kv.row_bytes();
      if (kv.dtype == DType::kF16 && !permutes) {
        std::memcpy(out, rows, position * kv.row_bytes());
        return;
      }
      std::vector<float> wide(head_dim);
      for (size_t row = 0; row < position; ++row) {
        DequantizeRow(kv.dtype, rows + row * kv.row_bytes(), wide);
        for (size_t i = 0; i < head_dim; ++i) {
          out[row * head_dim + (permutes ? permutation_[i] : i)] = F32ToF16(wide[i]);
        }
      }
    };
    if (alone) {
      compute_.pool.ParallelFor(n_kv, fill);
    } else {
      for (size_t head = 0; head < n_kv; ++head) fill(head, 0);
    }
  }
}

void NpuAttention::FillInputs(const Rows& chunk, size_t kv_length, bool alone) {
  const MatView& x = chunk.x;
  const size_t c = plan_.chunk_tokens, half = config_.rope_dim / 2;
  const auto pack = [&](Input which, size_t channels, const auto& row_of) {
    inputs_[which].resize(channels * c);
    rows_.clear();
    for (size_t row = 0; row < x.rows; ++row) rows_.push_back(row_of(row));
    PackColumns(rows_, channels, c, inputs_[which].data());
  };
  pack(kX, config_.dim, [&](size_t row) { return static_cast<const float*>(x.Row(row)); });
  pack(kCos, half, [&](size_t row) { return attention_.Cos(chunk.batch_row + row).data(); });
  pack(kSin, half, [&](size_t row) { return attention_.Sin(chunk.batch_row + row).data(); });
  FillMask(chunk.first_position, kv_length);
  if (kv_length > 0) FillCache(chunk.kv, chunk.first_position, kv_length, alone);
}

// False when a value left the range of fp16; x and the cache are then as they were.
bool NpuAttention::TakeOutputs(const Rows& chunk, size_t first, bool moe) {
  const MatView& x = chunk.x;
  const size_t c = plan_.chunk_tokens, head_dim = config_.head_dim;
  for (const auto& output : outputs_) {
    if (!AllFinite(output)) return false;
  }
  const auto rows_from = [&](const auto& row_of) {
    out_rows_.clear();
    for (size_t row = 0; row < x.rows; ++row) out_rows_.push_back(row_of(row));
    return std::span<float* const>(out_rows_);
  };
  // Both were found finite above.
  static_cast<void>(
      AddColumns(outputs_[kDelta].data(), config_.dim, c, 1.0f, rows_from([&](size_t row) { return x.Row(row); })));
  if (moe) {
    static_cast<void>(UnpackColumns(outputs_[kRouter].data(), config_.n_experts, c, 1.0f, rows_from([&](size_t row) {
                                      return ffn_.logits(first + row + 1).Row(first + row);
                                    })));
  }
  for (size_t row = 0; row < x.rows; ++row) {
    for (size_t head = 0; head < config_.n_kv_heads; ++head) {
      const size_t from = (head * c + row) * head_dim;
      for (size_t i = 0; i < head_dim; ++i) {
        row_k_[head * head_dim + i] = F16ToF32(outputs_[kKeys][from + permutation_[i]]);
        row_v_[head * head_dim + i] = F16ToF32(outputs_[kValues][from + i]);
      }
    }
    chunk.kv.Store(chunk.first_position + row, row_k_.data(), row_v_.data());
    has_logits_[first + row] = moe;
  }
  return true;
}

Status NpuAttention::RunChunk(const Rows& chunk, size_t first, bool alone, Done& done) {
  const uint32_t layer = chunk.layer;
  const auto bucket = std::lower_bound(plan_.kv_buckets.begin(), plan_.kv_buckets.end(), chunk.first_position);
  if (bucket == plan_.kv_buckets.end()) {
    // The same words for every position, so that the report counts them together.
    return MakeError(Code::kUnsupported, "attention: chunks beyond the longest planned cache of {} positions",
                     plan_.kv_buckets.empty() ? 0 : plan_.kv_buckets.back());
  }
  NpuProgram* const program = programs_.Attention(layer);
  if (program == nullptr) return MakeError(Code::kDevice, "attention_{}: refused", layer);
  const size_t c = plan_.chunk_tokens, kv_length = *bucket;
  const size_t kv_elems = size_t{config_.n_kv_heads} * c * config_.head_dim;
  const bool moe = config_.IsMoeLayer(layer);
  FillInputs(chunk, kv_length, alone);
  outputs_[kDelta].resize(config_.dim * c);
  outputs_[kKeys].resize(kv_elems);
  outputs_[kValues].resize(kv_elems);
  outputs_[kRouter].resize(moe ? config_.n_experts * c : 0);
  std::vector<TensorRef> in;
  std::vector<MutableTensorRef> out;
  double in_bytes = 0, out_bytes = 0;
  for (size_t i = 0; i < (kv_length > 0 ? 6u : 4u); ++i) {
    in.push_back({inputs_[i].data(), inputs_[i].size()});
    in_bytes += static_cast<double>(inputs_[i].size() * sizeof(uint16_t));
  }
  for (size_t i = 0; i < (moe ? 4u : 3u); ++i) {
    out.push_back({outputs_[i].data(), outputs_[i].size()});
    out_bytes += static_cast<double>(outputs_[i].size() * sizeof(uint16_t));
  }
  StageReport& stage = clock_.attention(layer);
  const auto copy = [&](double bytes, const char* name) {
    const double seconds = clock_.CopySeconds(bytes);
    done.end = clock_.CpuWorkAt(done.end, seconds, stage, alone ? Track::kCpu : Track::kPacker, name);
    done.copy_seconds += seconds;
  };
  copy(in_bytes, "attention inputs");
  const Nanos ready = done.end;
  const auto ran = program->Run(KvFunction(static_cast<uint32_t>(kv_length)), in, out, ready);
  Status status = ran.ok() ? Status(Ok{}) : Status(ran.error());
  if (status.ok() && !TakeOutputs(chunk, first, moe)) {
    status = MakeError(Code::kUnsupported, "a value left the range of fp16");
  }
  if (!status.ok()) {
    programs_.RefuseAttention(layer, status.error().message);
    return status;
  }
  stage.rows_used += chunk.x.rows;
  stage.rows_padded += c - chunk.x.rows;
  clock_.Dispatched(*ran, ready, stage, fmt::format("layer {} attention", layer),
                    {{"rows", chunk.x.rows}, {"cache", kv_length}});
  done.end = std::max(done.end, ran->end);
  copy(out_bytes, "attention outputs");
  return Ok{};
}

void NpuAttention::RunOnCpu(const Rows& chunk) {
  const LayerWeights& weights = model_.weights().layers[chunk.layer];
  const MatView &x = chunk.x, &normed = chunk.normed;
  compute_.ForRows(x.rows, [&](size_t row) {
    NormRow(config_, {x.Row(row), x.cols}, weights.attn_norm, weights.attn_norm_bias, {normed.Row(row), normed.cols});
  });
  attention_.Run(weights, chunk.kv, chunk.first_position, normed, x, chunk.batch_row);
  StageReport& stage = clock_.attention(chunk.layer);
  stage.rows_cpu += x.rows;
  clock_.CpuWork(CpuAttentionSeconds(config_, clock_.spec(), config_.IsMoeLayer(chunk.layer),
                                     static_cast<double>(x.rows), static_cast<double>(chunk.first_position)),
                 stage, fmt::format("layer {} attention", chunk.layer));
}

}  // namespace npumoe
