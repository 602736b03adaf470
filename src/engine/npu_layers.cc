// SPDX-License-Identifier: Apache-2.0
#include "engine/npu_layers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/vector_ops.h"
#include "moe/stage_graph.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

Nanos ToNanos(double seconds) { return static_cast<Nanos>(std::llround(seconds * 1e9)); }
double ToSeconds(Nanos nanos) { return static_cast<double>(nanos) * 1e-9; }

bool AllFinite(std::span<const uint16_t> halves) {
  return std::none_of(halves.begin(), halves.end(), [](uint16_t h) { return (h & 0x7c00u) == 0x7c00u; });
}

// out[channel * width + column] = row `column`'s value of that channel, as fp16: a graph wants channels first.
void PackColumns(std::span<const float> row, size_t column, size_t width, uint16_t* out) {
  for (size_t channel = 0; channel < row.size(); ++channel) out[channel * width + column] = F32ToF16(row[channel]);
}

}  // namespace

NpuLayers::NpuLayers(const Model& model, Plan plan, std::unique_ptr<NpuDevice> device, Compute& compute,
                     AttentionBlock& attention, Ffn& ffn)
    : model_(model),
      config_(model.config()),
      plan_(std::move(plan)),
      device_(std::move(device)),
      compute_(compute),
      attention_(attention),
      ffn_(ffn),
      permutation_(HeadPermutation(config_)),
      layers_(config_.n_layers),
      loads_(config_.n_experts),
      cpu_ranges_(config_.n_experts) {
  NM_CHECK(plan_.mode == OverflowMode::kExact);
  report_.npu = device_->Spec().name;
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    layers_[layer].groups.resize(plan_.layers[layer].groups.size());
  }
}

void NpuLayers::FallBack(const std::string& reason) { ++report_.fallbacks[reason]; }

void NpuLayers::CpuWork(double seconds, StageReport& stage) {
  cpu_now_ += ToNanos(seconds);
  stage.cpu_seconds += seconds;
  report_.cpu_joules += seconds * device_->Spec().cpu_watts.value;
}

void NpuLayers::BeginPrefill() {
  cpu_now_ = std::max(cpu_now_, npu_end_);
  begin_ = cpu_now_;
}

void NpuLayers::EndPrefill(double output_flops, double output_bytes) {
  CpuWork(CpuExpertCost(1, output_flops, output_bytes, device_->Spec()).seconds, report_.attention);
  report_.prefill_seconds += ToSeconds(cpu_now_ - begin_);
}

// ---- attention ----

NpuProgram* NpuLayers::AttentionProgram(uint32_t layer) {
  LayerState& state = layers_[layer];
  if (state.attention || state.attention_failed) return state.attention.get();
  auto graph = BuildAttentionStage(config_, model_.weights().layers[layer], config_.IsMoeLayer(layer),
                                   plan_.chunk_tokens, plan_.kv_buckets, plan_.attention_weights);
  const std::string key = fmt::format("attention_{}", layer);
  auto program =
      graph.ok() ? device_->Compile(std::move(graph).value(), key) : Result<std::unique_ptr<NpuProgram>>(graph.error());
  if (!program.ok()) {
    state.attention_failed = true;
    FallBack(key + ": " + program.error().message);
    return nullptr;
  }
  ++report_.attention.programs;
  state.attention = std::move(program).value();
  return state.attention.get();
}

void NpuLayers::FillAttentionInputs(const KvView& kv, size_t position, size_t kv_length, MatView x, size_t first_row) {
  const size_t c = plan_.chunk_tokens, half = config_.rope_dim / 2, total = kv_length + c;
  const size_t head_dim = config_.head_dim, n_kv = config_.n_kv_heads;
  inputs_.resize(std::max<size_t>(inputs_.size(), 6));
  inputs_[0].assign(config_.dim * c, 0);
  inputs_[1].assign(half * c, 0);
  inputs_[2].assign(half * c, 0);
  for (size_t row = 0; row < x.rows; ++row) {
    PackColumns({x.Row(row), x.cols}, row, c, inputs_[0].data());
    PackColumns(attention_.Cos(first_row + row), row, c, inputs_[1].data());
    PackColumns(attention_.Sin(first_row + row), row, c, inputs_[2].data());
  }
  const uint16_t masked = F32ToF16(kMaskedScore);
  inputs_[3].assign(c * total, masked);
  for (size_t row = 0; row < c; ++row) {
    const size_t here = position + row, window = config_.sliding_window;
    const size_t first = window > 0 && here >= window ? here - window + 1 : 0;
    uint16_t* mask = inputs_[3].data() + row * total;
    for (size_t p = first; p < position; ++p) mask[p] = 0;
    for (size_t p = std::max(first, position); p <= here; ++p) mask[kv_length + p - position] = 0;
  }
  if (kv_length == 0) return;
  for (size_t which = 0; which < 2; ++which) {
    std::vector<uint16_t>& cache = inputs_[4 + which];
    cache.assign(n_kv * kv_length * head_dim, 0);
    const std::byte* stored = which == 0 ? kv.keys : kv.values;
    for (size_t head = 0; head < n_kv; ++head) {
      for (size_t p = 0; p < position; ++p) {
        for (size_t i = 0; i < head_dim; ++i) {
          const size_t from = (head * kv.capacity + p) * head_dim + i;
          uint16_t value = 0;
          if (kv.dtype == DType::kF16) {
            std::memcpy(&value, stored + from * sizeof(value), sizeof(value));
          } else {
            float wide = 0;
            std::memcpy(&wide, stored + from * sizeof(wide), sizeof(wide));
            value = F32ToF16(wide);
          }
          cache[(head * kv_length + p) * head_dim + (which == 0 ? permutation_[i] : i)] = value;
        }
      }
    }
  }
}

Status NpuLayers::RunAttentionChunk(uint32_t layer, const KvView& kv, size_t position, MatView x, size_t first_row) {
  NpuProgram* const program = AttentionProgram(layer);
  if (program == nullptr) return MakeError(Code::kDevice, "attention_{}: not compiled", layer);
  const auto bucket = std::lower_bound(plan_.kv_buckets.begin(), plan_.kv_buckets.end(), position);
  if (bucket == plan_.kv_buckets.end()) {
    return MakeError(Code::kUnsupported, "attention: {} earlier positions, the longest bucket holds {}", position,
                     plan_.kv_buckets.empty() ? 0 : plan_.kv_buckets.back());
  }
  const size_t c = plan_.chunk_tokens, kv_length = *bucket, head_dim = config_.head_dim, n_kv = config_.n_kv_heads;
  const bool moe = config_.IsMoeLayer(layer);
  FillAttentionInputs(kv, position, kv_length, x, first_row);
  outputs_.resize(std::max<size_t>(outputs_.size(), 4));
  outputs_[0].resize(config_.dim * c);
  outputs_[1].resize(n_kv * c * head_dim);
  outputs_[2].resize(n_kv * c * head_dim);
  outputs_[3].resize(moe ? config_.n_experts * c : 0);
  std::vector<TensorRef> in;
  std::vector<MutableTensorRef> out;
  const size_t n_in = kv_length > 0 ? 6 : 4, n_out = moe ? 4 : 3;
  double bytes = 0;
  for (size_t i = 0; i < n_in; ++i)
    in.push_back({inputs_[i].data(), inputs_[i].size()}), bytes += 2.0 * static_cast<double>(inputs_[i].size());
  for (size_t i = 0; i < n_out; ++i) out.push_back({outputs_[i].data(), outputs_[i].size()});
  CpuWork(bytes / device_->Spec().copy_bytes_per_second.value, report_.attention);
  NM_TRY_VAR(const Interval ran, program->Run(KvFunction(static_cast<uint32_t>(kv_length)), in, out, cpu_now_));
  for (size_t i = 0; i < n_out; ++i) {
    if (!AllFinite(outputs_[i])) return MakeError(Code::kUnsupported, "attention: a value left the range of fp16");
  }
  for (size_t row = 0; row < x.rows; ++row) {
    for (size_t d = 0; d < config_.dim; ++d) x.Row(row)[d] += F16ToF32(outputs_[0][d * c + row]);
    std::vector<float>& k = row_k_;
    std::vector<float>& v = row_v_;
    for (size_t head = 0; head < n_kv; ++head) {
      const size_t from = (head * c + row) * head_dim;
      for (size_t i = 0; i < head_dim; ++i) {
        k[head * head_dim + i] = F16ToF32(outputs_[1][from + permutation_[i]]);
        v[head * head_dim + i] = F16ToF32(outputs_[2][from + i]);
      }
    }
    kv.Store(position + row, k.data(), v.data());
    if (!moe) continue;
    float* logits = ffn_.logits(first_row + row + 1).Row(first_row + row);
    for (size_t e = 0; e < config_.n_experts; ++e) logits[e] = F16ToF32(outputs_[3][e * c + row]);
    has_logits_[first_row + row] = true;
  }
  ++report_.attention.dispatches;
  report_.attention.rows_used += x.rows;
  report_.attention.rows_padded += c - x.rows;
  report_.attention.npu_seconds += ToSeconds(ran.end - ran.begin);
  report_.npu_joules += ran.energy_joules;
  report_.simulated = ran.simulated;
  cpu_now_ = npu_end_ = ran.end;
  return Ok{};
}

void NpuLayers::AttentionOnCpu(uint32_t layer, const KvView& kv, size_t position, MatView x, MatView normed,
                               size_t first_row) {
  const LayerWeights& weights = model_.weights().layers[layer];
  compute_.ForRows(x.rows, [&](size_t row) {
    NormRow(config_, {x.Row(row), x.cols}, weights.attn_norm, weights.attn_norm_bias, {normed.Row(row), normed.cols});
  });
  attention_.Run(weights, kv, position, normed, x, first_row);
  const double q_dim = double(config_.n_heads) * config_.head_dim,
               kv_dim = double(config_.n_kv_heads) * config_.head_dim;
  const double projections = 2.0 * config_.dim * (2 * q_dim + 2 * kv_dim);
  const double scores = 4.0 * q_dim * (static_cast<double>(position) + static_cast<double>(x.rows) / 2);
  const NpuSpec& spec = device_->Spec();
  CpuWork(std::max(static_cast<double>(x.rows) * (projections + scores) / spec.cpu_flops_per_second.value,
                   projections / spec.cpu_bytes_per_second.value),
          report_.attention);
  report_.attention.rows_cpu += x.rows;
}

Status NpuLayers::Attention(uint32_t layer, const KvView& kv, size_t first_position, MatView x, MatView normed) {
  has_logits_.assign(x.rows, false);
  row_k_.resize(size_t{config_.n_kv_heads} * config_.head_dim);
  row_v_.resize(row_k_.size());
  MakeRoom(layer);
  for (size_t begin = 0; begin < x.rows; begin += plan_.chunk_tokens) {
    const size_t n = std::min<size_t>(plan_.chunk_tokens, x.rows - begin);
    const MatView rows{x.Row(begin), n, x.cols, x.stride}, scratch{normed.Row(begin), n, normed.cols, normed.stride};
    const size_t position = first_position + begin;
    if (plan_.layers[layer].attention == AttentionPlace::kNpu) {
      const Status status = RunAttentionChunk(layer, kv, position, rows, begin);
      if (status.ok()) continue;
      if (!layers_[layer].attention_failed) FallBack(status.error().message);
    }
    AttentionOnCpu(layer, kv, position, rows, scratch, begin);
  }
  return Ok{};
}

// ---- experts ----

// Unloads the programs of the layers used longest ago until this layer's own fit beside what stays.
void NpuLayers::MakeRoom(uint32_t layer) {
  const NpuSpec& spec = device_->Spec();
  const size_t needed = 1 + plan_.layers[layer].groups.size();
  size_t programs = 0, bytes = 0;
  const auto count = [&](const LayerState& state) {
    if (state.attention) ++programs, bytes += state.attention->ResidentBytes();
    for (const GroupState& group : state.groups) {
      if (group.program) ++programs, bytes += group.program->ResidentBytes();
    }
  };
  for (const LayerState& state : layers_) count(state);
  // Layers run in order, so the one needed last again is the one before this, going backwards from the end: evict from
  // the layers furthest ahead in the cycle.
  for (uint32_t step = 1; step < config_.n_layers; ++step) {
    if (programs + needed <= spec.max_programs && bytes < spec.max_resident_bytes / 2) return;
    LayerState& state = layers_[(layer + config_.n_layers - step) % config_.n_layers];
    programs = bytes = 0;
    state.attention.reset();
    for (GroupState& group : state.groups) group.program.reset();
    for (const LayerState& other : layers_) count(other);
  }
}

NpuProgram* NpuLayers::GroupProgram(uint32_t layer, size_t group) {
  LayerState& state = layers_[layer];
  GroupState& g = state.groups[group];
  if (g.program || g.failed) return g.program.get();
  const LayerPlan& plan = plan_.layers[layer];
  auto graph = BuildExpertGroup(config_, model_.weights().layers[layer], plan.groups[group], plan_.expert_weights,
                                plan.expert_scale);
  const std::string key = fmt::format("experts_{}_{}", layer, group);
  if (graph.ok()) {
    g.npu_seconds.clear();
    for (const Function& function : graph->functions) {
      g.npu_seconds.push_back(DispatchCost(CountWork(*graph, function, device_->Spec()), device_->Spec()).seconds);
    }
  }
  auto program =
      graph.ok() ? device_->Compile(std::move(graph).value(), key) : Result<std::unique_ptr<NpuProgram>>(graph.error());
  if (!program.ok()) {
    g.failed = true;
    FallBack(key + ": " + program.error().message);
    return nullptr;
  }
  ++report_.experts.programs;
  g.program = std::move(program).value();
  return g.program.get();
}

// Packs the group's rows, runs it, and writes the outputs to the slots. On failure the group's slots go to the CPU.
Status NpuLayers::RunGroup(uint32_t layer, size_t group, uint32_t capacity, MatView x) {
  const ExpertGroup& experts = plan_.layers[layer].groups[group];
  const Dispatch& dispatch = ffn_.dispatch();
  const size_t dim = config_.dim, n = experts.experts.size(), slice = dim * capacity;
  group_in_.assign(n * slice, 0);
  group_out_.resize(n * slice);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t expert = experts.experts[i];
    const uint32_t kept = std::min(dispatch.Load(expert), capacity), begin = dispatch.expert_begin[expert];
    for (uint32_t row = 0; row < kept; ++row) {
      const uint32_t token = dispatch.slots[begin + row].token;
      PackColumns({x.Row(token), dim}, row, capacity, group_in_.data() + i * slice);
    }
  }
  const TensorRef in[] = {{group_in_.data(), group_in_.size()}};
  const MutableTensorRef out[] = {{group_out_.data(), group_out_.size()}};
  NM_TRY_VAR(const Interval ran,
             layers_[layer].groups[group].program->Run(CapacityFunction(capacity), in, out, npu_ready_));
  if (!AllFinite(group_out_)) return MakeError(Code::kUnsupported, "experts: a value left the range of fp16");
  const float scale = plan_.layers[layer].expert_scale;
  uint64_t used = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t expert = experts.experts[i];
    const uint32_t kept = std::min(dispatch.Load(expert), capacity), begin = dispatch.expert_begin[expert];
    used += kept;
    for (uint32_t row = 0; row < kept; ++row) {
      const auto y = ffn_.SlotOutput(begin + row);
      for (size_t d = 0; d < dim; ++d) y[d] = F16ToF32(group_out_[i * slice + d * capacity + row]) * scale;
    }
  }
  ++report_.experts.dispatches;
  report_.experts.rows_used += used;
  report_.experts.rows_padded += n * capacity - used;
  report_.experts.npu_seconds += ToSeconds(ran.end - ran.begin);
  report_.npu_joules += ran.energy_joules;
  npu_end_ = npu_ready_ = ran.end;
  return Ok{};
}

Status NpuLayers::Experts(uint32_t layer, MatView x, MatView y) {
  const LayerWeights& weights = model_.weights().layers[layer];
  const LayerPlan& plan = plan_.layers[layer];
  const NpuSpec& spec = device_->Spec();
  for (size_t row = 0; row < x.rows; ++row) {
    if (!has_logits_[row]) ffn_.RouterLogits(weights, {x.Row(row), 1, x.cols, x.stride}, row);
  }
  NM_TRY(ffn_.Route(layer, weights, x.rows));
  const Dispatch& dispatch = ffn_.dispatch();
  for (uint32_t expert = 0; expert < config_.n_experts; ++expert) loads_[expert] = dispatch.Load(expert);
  CpuWork(2.0 * static_cast<double>(x.rows) * config_.n_experts * sizeof(float) / spec.copy_bytes_per_second.value,
          report_.experts);

  Choose(layer, weights);
  // Both sides start when the choice is made: the NPU's groups on the feeder, everything else here.
  npu_ready_ = cpu_now_;
  const Nanos start = cpu_now_;
  std::vector<Error> errors(plan.groups.size());
  std::vector<bool> failed(plan.groups.size(), false);
  feeder_.Submit([&] {
    for (size_t group = 0; group < plan.groups.size(); ++group) {
      const uint32_t index = choice_.capacity_index[group];
      if (index == kSkipGroup || index == kGroupOnCpu) continue;
      const Status status = RunGroup(layer, group, plan.groups[group].capacities[index], x);
      if (!status.ok()) errors[group] = status.error(), failed[group] = true;
    }
  });
  ffn_.RunSlots(weights, x, cpu_ranges_);
  feeder_.Wait();
  const double cpu_seconds = CpuSeconds(weights, cpu_ranges_);
  CpuWork(cpu_seconds, report_.experts);
  const Nanos npu_side = std::max(npu_ready_, start);
  report_.overlap_seconds += ToSeconds(std::min(cpu_now_, npu_side) - start);
  cpu_now_ = std::max(cpu_now_, npu_side);
  RepeatOnCpu(layer, weights, x, failed, errors);
  ffn_.Combine(weights, x, y);
  CpuWork(2.0 * static_cast<double>(x.rows) * config_.top_k * config_.dim * sizeof(float) /
              spec.copy_bytes_per_second.value,
          report_.experts);
  return Ok{};
}

// Fills choice_ and the slots that are the CPU's.
void NpuLayers::Choose(uint32_t layer, const LayerWeights& weights) {
  const LayerPlan& plan = plan_.layers[layer];
  const Dispatch& dispatch = ffn_.dispatch();
  LayerState& state = layers_[layer];
  state.times.resize(plan.groups.size());
  for (size_t group = 0; group < plan.groups.size(); ++group) {
    GroupProgram(layer, group);
    state.times[group] = {state.groups[group].npu_seconds};
  }
  const double row_flops = 6.0 * config_.dim * config_.expert_dim;
  const CpuTimes cpu{row_flops / device_->Spec().cpu_flops_per_second.value,
                     ExpertBytes(weights) / device_->Spec().cpu_bytes_per_second.value};
  // A group without a program costs its CPU time whatever is chosen, so it stays out of the choice.
  LayerPlan usable = plan;
  for (size_t group = 0; group < plan.groups.size(); ++group) {
    if (state.groups[group].failed) usable.groups[group].capacities.clear();
  }
  ChooseRun(usable, loads_, state.times, cpu, plan_.per_run_capacity, /*spill=*/true, choice_);
  for (uint32_t expert = 0; expert < config_.n_experts; ++expert) {
    cpu_ranges_[expert] = {dispatch.expert_begin[expert], dispatch.expert_begin[expert + 1]};
  }
  for (const uint32_t expert : plan.cpu_experts) report_.experts.rows_cpu += loads_[expert];
  for (size_t group = 0; group < plan.groups.size(); ++group) {
    const uint32_t index = choice_.capacity_index[group];
    for (const uint32_t expert : plan.groups[group].experts) {
      if (index == kSkipGroup || index == kGroupOnCpu) {
        report_.experts.rows_cpu += loads_[expert];
        continue;
      }
      const uint32_t kept = std::min(loads_[expert], plan.groups[group].capacities[index]);
      cpu_ranges_[expert].begin += kept;
      report_.experts.rows_spilled += loads_[expert] - kept;
    }
  }
}

double NpuLayers::ExpertBytes(const LayerWeights& weights) const {
  const auto bytes = [](const TensorView& w) { return static_cast<double>(ByteSize(w.dtype, w.shape).value()); };
  return bytes(weights.expert_gate[0]) + bytes(weights.expert_up[0]) + bytes(weights.expert_down[0]);
}

double NpuLayers::CpuSeconds(const LayerWeights& weights, std::span<const SlotRange> ranges) const {
  const double row_flops = 6.0 * config_.dim * config_.expert_dim, bytes = ExpertBytes(weights);
  double seconds = 0;
  for (const SlotRange& range : ranges) {
    seconds += CpuExpertCost(range.end - range.begin, row_flops, bytes, device_->Spec()).seconds;
  }
  return seconds;
}

// A group whose run failed is computed by the CPU now and for the rest of the session.
void NpuLayers::RepeatOnCpu(uint32_t layer, const LayerWeights& weights, MatView x, const std::vector<bool>& failed,
                            const std::vector<Error>& errors) {
  if (std::none_of(failed.begin(), failed.end(), [](bool f) { return f; })) return;
  const Dispatch& dispatch = ffn_.dispatch();
  std::fill(cpu_ranges_.begin(), cpu_ranges_.end(), SlotRange{});
  for (size_t group = 0; group < failed.size(); ++group) {
    if (!failed[group]) continue;
    FallBack(fmt::format("experts_{}_{}: {}", layer, group, errors[group].message));
    layers_[layer].groups[group].failed = true;
    layers_[layer].groups[group].program.reset();
    for (const uint32_t expert : plan_.layers[layer].groups[group].experts) {
      const uint32_t begin = dispatch.expert_begin[expert];
      const uint32_t index = choice_.capacity_index[group];
      const uint32_t kept = std::min(dispatch.Load(expert), plan_.layers[layer].groups[group].capacities[index]);
      cpu_ranges_[expert] = {begin, begin + kept};
      report_.experts.rows_cpu += kept;
    }
  }
  ffn_.RunSlots(weights, x, cpu_ranges_);
  CpuWork(CpuSeconds(weights, cpu_ranges_), report_.experts);
}

}  // namespace npumoe
