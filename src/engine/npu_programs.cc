// SPDX-License-Identifier: Apache-2.0
#include "engine/npu_programs.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "moe/stage_graph.h"
#include "npu/cost.h"

namespace npumoe {

Result<Graph> BuildProgram(const Model& model, const Plan& plan, uint32_t layer, size_t group, ThreadPool* pool) {
  const ModelConfig& config = model.config();
  const LayerWeights& weights = model.weights().layers[layer];
  const LayerPlan& one = plan.layers[layer];
  if (group == kAttentionProgram) {
    return BuildAttentionStage(config, weights, config.IsMoeLayer(layer), plan.chunk_tokens, plan.kv_buckets,
                               plan.attention_weights, pool);
  }
  return BuildExpertGroup(config, weights, one.groups[group], plan.expert_weights, one.expert_scale, pool);
}

std::string ProgramName(uint32_t layer, size_t group) {
  return group == kAttentionProgram ? fmt::format("attention_{}", layer) : fmt::format("experts_{}_{}", layer, group);
}

NpuPrograms::NpuPrograms(const Model& model, const Plan& plan, NpuDevice& device, RunClock& clock, ThreadPool& pool)
    : model_(model),
      config_(model.config()),
      plan_(plan),
      device_(device),
      clock_(clock),
      pool_(pool),
      layers_(config_.n_layers) {
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    layers_[layer].attention.key = ProgramName(layer, kAttentionProgram);
    layers_[layer].groups.resize(plan.layers[layer].groups.size());
    for (size_t group = 0; group < layers_[layer].groups.size(); ++group) {
      layers_[layer].groups[group].key = ProgramName(layer, group);
    }
  }
}

size_t NpuPrograms::HostBytes() const {
  size_t bytes = device_.HostBytes();
  const auto count = [&](const Program& program) { bytes += program.loaded ? program.loaded->HostBytes() : 0; };
  for (const Layer& layer : layers_) {
    count(layer.attention);
    for (const Program& group : layer.groups) count(group);
  }
  return bytes;
}

size_t NpuPrograms::peak_host_bytes() const { return std::max(peak_host_bytes_, HostBytes()); }

void NpuPrograms::Unload(Program& program) {
  if (!program.loaded) return;
  peak_host_bytes_ = peak_host_bytes();
  --n_loaded_;
  loaded_bytes_ -= program.weight_bytes;
  program.loaded.reset();
}

void NpuPrograms::Refuse(Program& program, const std::string& reason) {
  clock_.FallBack(program.key + ": " + reason);
  Unload(program);
  program.refused = true;
}

bool NpuPrograms::MakeRoom(size_t bytes, uint32_t layer, const uint32_t* running) {
  const NpuSpec& spec = device_.Spec();
  const auto fits = [&] { return n_loaded_ < spec.max_programs && bytes <= spec.max_resident_bytes - loaded_bytes_; };
  const uint32_t n = config_.n_layers;
  // From the layer before the running one, needed last, to the one behind it.
  for (uint32_t back = 1; running != nullptr && back < n && !fits(); ++back) {
    const uint32_t victim = (*running + n - back) % n;
    if (victim == layer) continue;
    for (Program& group : layers_[victim].groups) {
      if (!fits()) Unload(group);
    }
    if (!fits()) Unload(layers_[victim].attention);
  }
  return fits();
}

NpuProgram* NpuPrograms::Load(uint32_t layer, size_t index, const uint32_t* running, bool must) {
  Program& program = At(layer, index);
  if (program.loaded || program.refused) return program.loaded.get();
  // Known to be too large: not even built.
  if (!must && program.weight_bytes > 0 && !MakeRoom(program.weight_bytes, layer, running)) return nullptr;
  const std::optional<Nanos> begin = clock_.RealNow();
  auto graph = BuildProgram(model_, plan_, layer, index, &pool_);
  if (!graph.ok()) {
    Refuse(program, graph.error().message);
    return nullptr;
  }
  program.weight_bytes = graph->WeightBytes();
  if (index != kAttentionProgram && program.dispatch_seconds.empty()) {
    for (const Function& function : graph->functions) {
      const Work work = CountWork(*graph, function, device_.Spec());
      const Cost cost = DispatchCost(work, device_.Spec());
      program.dispatch_seconds.push_back(cost.seconds);
      program.dispatch_joules.push_back(cost.joules);
    }
  }
  if (!MakeRoom(program.weight_bytes, layer, running) && !must) return nullptr;
  auto compiled = device_.Compile(std::move(graph).value(), program.key);
  if (!compiled.ok()) {
    Refuse(program, compiled.error().message);
    return nullptr;
  }
  program.loaded = std::move(compiled).value();
  clock_.Loaded(begin);
  ++n_loaded_;
  loaded_bytes_ += program.weight_bytes;
  StageReport& stage = index == kAttentionProgram ? clock_.attention(layer) : clock_.experts(layer);
  ++(program.was_loaded ? stage.loads : stage.programs);
  program.was_loaded = true;
  return program.loaded.get();
}

NpuProgram* NpuPrograms::Attention(uint32_t layer) { return Load(layer, kAttentionProgram, &layer, /*must=*/true); }
NpuProgram* NpuPrograms::Group(uint32_t layer, size_t group) { return Load(layer, group, &layer, /*must=*/true); }

// Visits the indices of a layer's programs until one says false; returns what the last said.
template <typename Visit>
bool NpuPrograms::ForPrograms(uint32_t layer, const Visit& visit) {
  if (plan_.layers[layer].attention == AttentionPlace::kNpu && !visit(kAttentionProgram)) return false;
  for (size_t group = 0; group < layers_[layer].groups.size(); ++group) {
    if (!visit(group)) return false;
  }
  return true;
}

bool NpuPrograms::Preload(uint32_t layer) {
  return ForPrograms(layer, [&](size_t index) {
    return Load(layer, index, nullptr, /*must=*/false) != nullptr || At(layer, index).refused;
  });
}

void NpuPrograms::Prefetch(uint32_t layer, uint32_t running) {
  if (layer == running) return;
  ForPrograms(layer, [&](size_t index) {
    return Load(layer, index, &running, /*must=*/false) != nullptr || At(layer, index).refused;
  });
}

}  // namespace npumoe
