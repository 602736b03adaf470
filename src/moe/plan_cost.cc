// SPDX-License-Identifier: Apache-2.0
#include "moe/plan_cost.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "moe/layer_cost.h"

namespace npumoe {
namespace {

constexpr size_t kBatches = 6;  // which layers stay loaded moves from batch to batch; the mean of a few is steady

// Which programs are loaded, and until when the loader is busy.
class Residency {
 public:
  Residency(std::span<const LayerPrograms> layers, const NpuSpec& spec)
      : layers_(layers), spec_(spec), n_of_layer_(layers.size()) {
    for (const LayerPrograms& layer : layers) ready_.emplace_back(layer.bytes.size(), kAbsent);
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      for (size_t program = 0; program < layers[layer].bytes.size(); ++program) {
        if (!Fits(layers[layer].bytes[program])) return;
        Take(layer, program, 0);
      }
    }
  }

  // Loads what `layer` lacks while `running` runs, from `now` on.
  void Load(size_t layer, size_t running, double now) {
    for (size_t program = 0; program < ready_[layer].size(); ++program) {
      if (ready_[layer][program] != kAbsent) continue;
      const size_t bytes = layers_[layer].bytes[program];
      const bool fits = MakeRoom(bytes, layer, running);
      if (!fits && layer != running) return;  // it has to wait until this layer is through
      const double seconds = ProgramLoadCost(static_cast<double>(bytes), spec_).seconds;
      loader_free_ = std::max(loader_free_, now) + seconds;
      load_seconds_ += seconds;
      // What never fits is loaded for its run alone.
      if (fits) {
        Take(layer, program, loader_free_);
      } else {
        late_ = std::max(late_, loader_free_);
      }
    }
  }

  // When the programs [first, last) of `layer`, loaded or being loaded, are all there; with the last of them also those
  // that are loaded for their run alone.
  double Ready(size_t layer, size_t first, size_t last) {
    double ready = last == ready_[layer].size() ? std::exchange(late_, 0) : 0;
    for (size_t program = first; program < last; ++program) ready = std::max(ready, ready_[layer][program]);
    return ready;
  }

  double load_seconds() const { return load_seconds_; }

 private:
  static constexpr double kAbsent = -1;

  bool Fits(size_t bytes) const {
    return n_loaded_ < spec_.max_programs && bytes <= spec_.max_resident_bytes - bytes_loaded_;
  }
  void Take(size_t layer, size_t program, double ready) {
    ready_[layer][program] = ready;
    ++n_loaded_;
    ++n_of_layer_[layer];
    bytes_loaded_ += layers_[layer].bytes[program];
  }
  void Drop(size_t layer, size_t program) {
    if (ready_[layer][program] == kAbsent || Fits(wanted_)) return;
    ready_[layer][program] = kAbsent;
    --n_loaded_;
    --n_of_layer_[layer];
    bytes_loaded_ -= layers_[layer].bytes[program];
  }
  bool MakeRoom(size_t bytes, size_t layer, size_t running) {
    wanted_ = bytes;
    const size_t n = layers_.size();
    for (size_t back = 1; back < n && !Fits(bytes); ++back) {
      const size_t victim = (running + n - back) % n;
      if (victim == layer || victim == running || n_of_layer_[victim] == 0) continue;
      const size_t attention = layers_[victim].attention_on_npu ? 1 : 0;  // goes last
      for (size_t program = attention; program < ready_[victim].size(); ++program) Drop(victim, program);
      if (attention > 0) Drop(victim, 0);
    }
    return Fits(bytes);
  }

  std::span<const LayerPrograms> layers_;
  const NpuSpec& spec_;
  std::vector<std::vector<double>> ready_;  // [layers][programs] when loaded
  std::vector<size_t> n_of_layer_;          // [layers] loaded programs
  size_t n_loaded_ = 0, bytes_loaded_ = 0, wanted_ = 0;
  double loader_free_ = 0, load_seconds_ = 0, late_ = 0;
};

}  // namespace

LoadCost ExpectedLoads(std::span<const LayerPrograms> layers, const NpuSpec& spec, PrefillOrder order) {
  size_t n_programs = 0, bytes = 0;
  for (const LayerPrograms& layer : layers) {
    n_programs += layer.bytes.size();
    for (const size_t program : layer.bytes) bytes += program;
  }
  if (n_programs <= spec.max_programs && bytes <= spec.max_resident_bytes) return {};
  Residency residency(layers, spec);
  double now = 0, wait = 0;
  const auto wait_until = [&](double ready) {
    wait += std::max(0.0, ready - now);
    now = std::max(now, ready);
  };
  for (size_t batch = 0; batch < kBatches; ++batch) {
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      const LayerPrograms& programs = layers[layer];
      const auto prefetch = [&] {
        if (layers.size() > 1) residency.Load((layer + 1) % layers.size(), layer, now);
      };
      residency.Load(layer, layer, now);
      if (order != PrefillOrder::kWavefront) prefetch();
      const size_t n_attention = programs.attention_on_npu && !programs.bytes.empty() ? 1 : 0;
      wait_until(residency.Ready(layer, 0, n_attention));
      now += programs.attention_seconds;
      if (order == PrefillOrder::kWavefront) prefetch();
      wait_until(residency.Ready(layer, n_attention, programs.bytes.size()));
      now += programs.expert_seconds;
    }
  }
  return {false, residency.load_seconds() / kBatches, wait / kBatches};
}

bool NeighboursFit(std::span<const LayerPrograms> layers, const NpuSpec& spec) {
  const auto bytes_of = [](const LayerPrograms& layer) {
    return std::accumulate(layer.bytes.begin(), layer.bytes.end(), size_t{0});
  };
  for (size_t layer = 0; layer + 1 < layers.size(); ++layer) {
    const LayerPrograms &a = layers[layer], &b = layers[layer + 1];
    if (a.bytes.size() + b.bytes.size() > spec.max_programs) return false;
    if (bytes_of(a) + bytes_of(b) > spec.max_resident_bytes) return false;
  }
  return true;
}

LayerPrograms ProgramsOf(const ModelConfig& config, const Plan& plan, uint32_t layer, const LayerPlan& layer_plan) {
  LayerPrograms programs;
  programs.attention_on_npu = layer_plan.attention == AttentionPlace::kNpu;
  if (programs.attention_on_npu) {
    programs.bytes.push_back(AttentionWeightBytes(config, config.IsMoeLayer(layer), plan.attention_weights));
  }
  for (const ExpertGroup& group : layer_plan.groups) {
    programs.bytes.push_back(group.experts.size() * ExpertWeightBytes(config, plan.expert_weights) +
                             kGraphConstantBytes);
  }
  return programs;
}

PlanCost ExpectedPlanCost(const ModelConfig& config, const Plan& plan, std::span<const LayerPlan> layers,
                          std::span<const AttentionCost> attention, std::span<const LayerCost> experts,
                          const NpuSpec& spec) {
  PlanCost total;
  std::vector<LayerPrograms> programs(layers.size());
  for (uint32_t layer = 0; layer < layers.size(); ++layer) {
    LayerPrograms& p = programs[layer] = ProgramsOf(config, plan, layer, layers[layer]);
    // Attention beside the experts of the other half is in their seconds, and so is adding their outputs then.
    p.attention_seconds = attention[layer].Seconds() - experts[layer].attention_seconds;
    p.expert_seconds = experts[layer].Seconds();
    total.joules += attention[layer].joules + experts[layer].joules;
    if (config.IsMoeLayer(layer) && experts[layer].attention_seconds == 0) {
      const double scatter = ExpertScatterSeconds(config, spec, plan.moe_batch_tokens);
      p.expert_seconds += scatter;
      total.joules += scatter * spec.cpu_watts.value;
    }
    if (plan.order == PrefillOrder::kWavefront) {
      p.attention_seconds += p.expert_seconds / 2;
      p.expert_seconds /= 2;
    }
    total.seconds += p.attention_seconds + p.expert_seconds;
    total.n_programs += p.bytes.size();
    for (const size_t bytes : p.bytes) total.program_bytes += bytes;
  }
  total.loads = ExpectedLoads(programs, spec, plan.order);
  total.seconds += total.loads.wait_seconds;
  total.joules += total.loads.load_seconds * spec.watts_base.value;
  return total;
}

}  // namespace npumoe
