// SPDX-License-Identifier: Apache-2.0
#include "engine/npu_experts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/columns.h"
#include "moe/layer_cost.h"
#include "moe/reroute.h"
#include "moe/stage_graph.h"
#include "npu/cost.h"
#include "npumoe/engine.h"

namespace npumoe {
namespace {

double Bytes(const TensorView& w) { return static_cast<double>(ByteSize(w.dtype, w.shape).value()); }

double ExpertBytes(const LayerWeights& weights) {
  return Bytes(weights.expert_gate[0]) + Bytes(weights.expert_up[0]) + Bytes(weights.expert_down[0]);
}

double RowFlops(const ModelConfig& config) { return 6.0 * config.dim * config.expert_dim; }

// What the shared expert takes of the CPU for all tokens, beside the groups.
double SharedSeconds(const ModelConfig& config, const LayerWeights& weights, size_t n_tokens, const NpuSpec& spec) {
  if (config.shared_expert_dim == 0) return 0;
  return CpuFfnSeconds(weights.shared_gate, weights.shared_up, weights.shared_down, n_tokens, spec);
}

}  // namespace

double CpuFfnSeconds(const TensorView& gate, const TensorView& up, const TensorView& down, size_t n_tokens,
                     const NpuSpec& spec) {
  const double row_flops = 6.0 * static_cast<double>(gate.shape.elems());
  return CpuExpertCost(static_cast<double>(n_tokens), row_flops, Bytes(gate) + Bytes(up) + Bytes(down), spec).seconds;
}

NpuExperts::NpuExperts(const Model& model, const Plan& plan, NpuPrograms& programs, RunClock& clock, Ffn& ffn)
    : model_(model),
      config_(model.config()),
      plan_(plan),
      programs_(programs),
      clock_(clock),
      ffn_(ffn),
      usable_(plan.layers),
      kept_(config_.n_experts),
      cpu_ranges_(config_.n_experts) {}

Status NpuExperts::Run(uint32_t layer, MatView x, MatView y, Beside* beside) {
  const LayerWeights& weights = model_.weights().layers[layer];
  StageReport& stage = clock_.experts(layer);
  NM_TRY(ffn_.Route(layer, weights, x.rows));
  clock_.CpuWork(clock_.CopySeconds(2.0 * static_cast<double>(x.rows) * config_.n_experts * sizeof(float)), stage,
                 "route");
  if (plan_.mode == OverflowMode::kReroute) RerouteOverflow(layer, x.rows);
  for (uint32_t expert = 0; expert < config_.n_experts; ++expert) kept_[expert] = ffn_.dispatch().Load(expert);
  if (plan_.mode == OverflowMode::kPrune) PruneOverflow(layer);
  Choose(layer, weights, x.rows, beside);

  on_device_.assign(config_.n_experts, {});
  halves_.resize(ffn_.dispatch().slots.size() * config_.dim);

  // Both sides start when the choice is made.
  const Nanos start = clock_.now();
  packer_.Submit([this, layer, x, beside] {
    RunGroups(layer, x);
    // From here on this thread leaves clock and programs to the one beside.
    if (beside != nullptr) beside_.Submit([this, beside] { beside->done = beside->run(groups_end_); });
  });
  ffn_.RunSlots(weights, x, cpu_ranges_, /*shared=*/true);
  const std::optional<Nanos> cpu_end = clock_.RealNow();
  packer_.Wait();
  const double last_unpack = UnpackLast(layer);
  const std::optional<Nanos> unpack_end = clock_.RealNow();
  const bool all_ran = std::ranges::all_of(jobs_, [](const Job& job) { return job.ran->ok(); });
  const auto combine = [&] {
    const Ffn::DeviceRows device{on_device_, halves_.data(), plan_.layers[layer].expert_scale};
    ffn_.Combine(y, &device);
  };
  if (all_ran) combine();
  std::optional<Nanos> combine_end = clock_.RealNow();
  beside_.Wait();

  const double shared = SharedSeconds(config_, weights, x.rows, clock_.spec());
  clock_.CpuWork(CpuSeconds(weights) + shared, stage, fmt::format("layer {} experts", layer), cpu_end);
  clock_.ShareCpu(pack_seconds_);
  if (beside != nullptr) clock_.ShareCpu(beside->done.copy_seconds);
  const Nanos npu_end = beside != nullptr ? beside->done.end : groups_end_;
  clock_.AddOverlap(std::max(Nanos{0}, std::min(clock_.now(), npu_end) - start));
  clock_.WaitUntil(groups_end_);
  clock_.CpuWork(last_unpack, stage, "unpack", unpack_end);
  if (!all_ran) {
    RepeatOnCpu(layer, weights, x);
    combine();
    combine_end = clock_.RealNow();
  }
  clock_.CpuWork(ExpertScatterSeconds(config_, clock_.spec(), static_cast<double>(x.rows)), stage, "combine", combine_end);
  return Ok{};
}

size_t NpuExperts::buffer_bytes() const {
  size_t halves = halves_.capacity();
  for (const Buffers& buffers : buffers_) halves += buffers.in.capacity() + buffers.out.capacity();
  return halves * sizeof(uint16_t);
}

void NpuExperts::RerouteOverflow(uint32_t layer, size_t n_tokens) {
  std::vector<uint32_t> capacities(config_.n_experts, kNoCapacity);
  for (const ExpertGroup& group : plan_.layers[layer].groups) {
    for (const uint32_t expert : group.experts) capacities[expert] = group.capacities.back();
  }
  clock_.experts(layer).rows_rerouted +=
      Reroute({ffn_.logits(n_tokens).data, n_tokens * config_.n_experts}, capacities, config_.top_k,
              ffn_.chosen_experts(n_tokens), ffn_.chosen_weights(n_tokens));
  ffn_.Redispatch(n_tokens);
}

// Rows above the largest capacity are dropped, those of the least weight first. That a group runs on the CPU after all
// changes nothing, so that a fault of the device cannot change the text.
void NpuExperts::PruneOverflow(uint32_t layer) {
  Dispatch& dispatch = ffn_.dispatch();
  for (const ExpertGroup& group : plan_.layers[layer].groups) {
    const uint32_t capacity = group.capacities.back();
    for (const uint32_t expert : group.experts) {
      if (kept_[expert] <= capacity) continue;
      KeepMostSalient(dispatch, expert, capacity);
      for (uint32_t slot = dispatch.expert_begin[expert] + capacity; slot < dispatch.expert_begin[expert + 1]; ++slot) {
        std::ranges::fill(ffn_.SlotOutput(slot), 0.0f);
      }
      clock_.experts(layer).rows_pruned += kept_[expert] - capacity;
      kept_[expert] = capacity;
    }
  }
}

void NpuExperts::MarkDropped(std::span<uint32_t> choices) const {
  if (plan_.mode != OverflowMode::kPrune) return;
  const Dispatch& dispatch = ffn_.dispatch();
  for (size_t i = 0; i < choices.size(); ++i) {
    const uint32_t expert = choices[i];
    if (dispatch.slot_of_choice[i] >= dispatch.expert_begin[expert] + kept_[expert]) choices[i] = kNoExpert;
  }
}

void NpuExperts::MoveToCpu(uint32_t layer, size_t group) {
  auto& experts = usable_[layer].groups[group].experts;
  auto& on_cpu = usable_[layer].cpu_experts;
  on_cpu.insert(on_cpu.end(), experts.begin(), experts.end());
  experts.clear();  // nobody is routed to it any more
}

// Fills choice_, jobs_ and the rows that are the CPU's.
void NpuExperts::Choose(uint32_t layer, const LayerWeights& weights, size_t n_tokens, const Beside* beside) {
  LayerPlan& plan = usable_[layer];
  const NpuSpec& spec = clock_.spec();
  times_.assign(plan.groups.size(), {});
  for (size_t group = 0; group < plan.groups.size(); ++group) {
    const auto& experts = plan.groups[group].experts;
    // A program that nobody needs now is not loaded.
    if (std::ranges::none_of(experts, [&](uint32_t e) { return kept_[e] > 0; })) continue;
    if (programs_.Group(layer, group) == nullptr) MoveToCpu(layer, group);
    times_[group] = programs_.Times(layer, group);
  }
  const CpuTimes cpu{RowFlops(config_) / spec.cpu_flops_per_second.value,
                     ExpertBytes(weights) / spec.cpu_bytes_per_second.value, spec.cpu_watts.value};
  RunOption other{0, SharedSeconds(config_, weights, n_tokens, spec)};
  if (beside != nullptr) {
    other.npu += beside->seconds.npu;
    other.cpu += beside->seconds.cpu + ExpertScatterSeconds(config_, spec, static_cast<double>(n_tokens));
  }
  ChooseRun(plan, kept_, times_, cpu, plan_.per_run_capacity, /*spill=*/true, other, plan_.joule_price, choice_);

  const Dispatch& dispatch = ffn_.dispatch();
  StageReport& stage = clock_.experts(layer);
  for (uint32_t expert = 0; expert < config_.n_experts; ++expert) {
    const uint32_t begin = dispatch.expert_begin[expert];
    cpu_ranges_[expert] = {begin, begin + kept_[expert]};
  }
  for (const uint32_t expert : plan.cpu_experts) stage.rows_cpu += kept_[expert];
  jobs_.clear();
  for (size_t group = 0; group < plan.groups.size(); ++group) {
    const uint32_t index = choice_.capacity_index[group];
    const bool on_npu = index != kSkipGroup && index != kGroupOnCpu;
    if (on_npu) jobs_.push_back({group, plan.groups[group].capacities[index], 0, 0, std::nullopt});
    for (const uint32_t expert : plan.groups[group].experts) {
      if (!on_npu) {
        stage.rows_cpu += kept_[expert];
        continue;
      }
      const uint32_t on_device = std::min(kept_[expert], jobs_.back().capacity);
      cpu_ranges_[expert].begin += on_device;
      stage.rows_spilled += kept_[expert] - on_device;
    }
  }
}

// Packs a group while the one before runs, unpacks it while the one behind runs. The last one stays packed.
void NpuExperts::RunGroups(uint32_t layer, MatView x) {
  StageReport& stage = clock_.experts(layer);
  Nanos now = clock_.now();  // the packer's
  pack_seconds_ = 0;
  const auto work = [&](double seconds, const char* name) {
    now = clock_.CpuWorkAt(now, seconds, stage, Track::kPacker, name);
    pack_seconds_ += seconds;
  };
  if (!jobs_.empty()) work(Pack(layer, jobs_[0], x, buffers_[0]), "pack");
  for (size_t i = 0; i < jobs_.size(); ++i) {
    Job& job = jobs_[i];
    job.ready = now;
    queue_.Submit([this, layer, &job, i] { Launch(layer, job, buffers_[i % 2]); });
    // Outputs of the group before stand in the other buffers until here.
    if (i > 0) work(Unpack(layer, jobs_[i - 1], buffers_[(i - 1) % 2]), "unpack");
    if (i + 1 < jobs_.size()) work(Pack(layer, jobs_[i + 1], x, buffers_[(i + 1) % 2]), "pack");
    queue_.Wait();
    if (!job.ran->ok()) continue;
    Count(layer, job);
    now = std::max(now, (*job.ran)->end);
  }
  groups_end_ = now;
}

// Fills the group's inputs with its rows; returns the seconds that the CPU beside the device takes for it.
double NpuExperts::Pack(uint32_t layer, Job& job, MatView x, Buffers& buffers) {
  const ExpertGroup& group = plan_.layers[layer].groups[job.group];
  const Dispatch& dispatch = ffn_.dispatch();
  const size_t dim = config_.dim, slice = dim * job.capacity;
  buffers.in.resize(group.experts.size() * slice);
  buffers.out.resize(buffers.in.size());
  job.rows = 0;
  for (size_t i = 0; i < group.experts.size(); ++i) {
    const uint32_t expert = group.experts[i], begin = dispatch.expert_begin[expert];
    const uint32_t n = std::min(kept_[expert], job.capacity);
    job.rows += n;
    in_rows_.clear();
    for (uint32_t row = 0; row < n; ++row) in_rows_.push_back(x.Row(dispatch.slots[begin + row].token));
    PackColumns(in_rows_, dim, job.capacity, buffers.in.data() + i * slice);
  }
  return clock_.CopySeconds(static_cast<double>(job.rows * dim) * (sizeof(float) + sizeof(uint16_t)));
}

void NpuExperts::Launch(uint32_t layer, Job& job, Buffers& buffers) {
  const TensorRef in[] = {{buffers.in.data(), buffers.in.size()}};
  const MutableTensorRef out[] = {{buffers.out.data(), buffers.out.size()}};
  job.ran = programs_.Group(layer, job.group)->Run(CapacityFunction(job.capacity), in, out, job.ready);
}

// A run that went through.
void NpuExperts::Count(uint32_t layer, const Job& job) {
  const size_t n_experts = plan_.layers[layer].groups[job.group].experts.size();
  clock_.Dispatched(**job.ran, job.ready, clock_.experts(layer),
                    fmt::format("layer {} experts, group {}", layer, job.group),
                    {{"experts", n_experts}, {"capacity", job.capacity}, {"rows", job.rows}});
}

// Brings the outputs to their slots; returns the CPU's seconds. Values that left the range of fp16 make the run an
// error.
double NpuExperts::Unpack(uint32_t layer, Job& job, const Buffers& buffers) {
  if (!job.ran->ok()) return 0;
  const ExpertGroup& group = plan_.layers[layer].groups[job.group];
  const Dispatch& dispatch = ffn_.dispatch();
  const size_t dim = config_.dim, slice = dim * job.capacity;
  bool finite = true;
  for (size_t i = 0; i < group.experts.size(); ++i) {
    const uint32_t expert = group.experts[i], begin = dispatch.expert_begin[expert];
    const uint32_t n = std::min(kept_[expert], job.capacity);
    out_rows_.clear();
    for (uint32_t row = 0; row < n; ++row) out_rows_.push_back(halves_.data() + (begin + row) * dim);
    finite = UnpackHalves(buffers.out.data() + i * slice, dim, job.capacity, out_rows_) && finite;
  }
  if (!finite) {
    job.ran = Result<Interval>(MakeError(Code::kUnsupported, "a value left the range of fp16"));
    return 0;
  }
  for (const uint32_t expert : group.experts) on_device_[expert].n_halves = std::min(kept_[expert], job.capacity);
  StageReport& stage = clock_.experts(layer);
  stage.rows_used += job.rows;
  stage.rows_padded += group.experts.size() * job.capacity - job.rows;
  return clock_.CopySeconds(static_cast<double>(job.rows * dim) * 2 * sizeof(uint16_t));
}

// Nothing is left to pack beside it, so that the caller's thread does it while the device goes on.
double NpuExperts::UnpackLast(uint32_t layer) {
  return jobs_.empty() ? 0 : Unpack(layer, jobs_.back(), buffers_[(jobs_.size() - 1) % 2]);
}

double NpuExperts::CpuSeconds(const LayerWeights& weights) const {
  const double bytes = ExpertBytes(weights);
  double seconds = 0;
  for (const SlotRange& range : cpu_ranges_) {
    seconds += CpuExpertCost(range.end - range.begin, RowFlops(config_), bytes, clock_.spec()).seconds;
  }
  return seconds;
}

// A group whose run failed is computed by the CPU now and for the rest of the session.
void NpuExperts::RepeatOnCpu(uint32_t layer, const LayerWeights& weights, MatView x) {
  std::ranges::fill(cpu_ranges_, SlotRange{});
  StageReport& stage = clock_.experts(layer);
  for (const Job& job : jobs_) {
    if (job.ran->ok()) continue;
    programs_.RefuseGroup(layer, job.group, job.ran->error().message);
    for (const uint32_t expert : plan_.layers[layer].groups[job.group].experts) {
      const uint32_t begin = ffn_.dispatch().expert_begin[expert], n = std::min(kept_[expert], job.capacity);
      cpu_ranges_[expert] = {begin, begin + n};
      stage.rows_cpu += n;
    }
    MoveToCpu(layer, job.group);
  }
  ffn_.RunSlots(weights, x, cpu_ranges_, /*shared=*/false);
  clock_.CpuWork(CpuSeconds(weights), stage, fmt::format("layer {} experts again", layer));
}

}  // namespace npumoe
