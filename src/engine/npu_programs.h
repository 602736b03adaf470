// SPDX-License-Identifier: Apache-2.0
// The programs of a plan on a device: compiled from the model's weights, loaded and unloaded under the device's limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "engine/run_clock.h"
#include "model/weights.h"
#include "moe/plan.h"
#include "moe/run_choice.h"
#include "npu/device.h"

namespace npumoe {

// The graph of one program of a plan: of `layer`'s attention stage (`group` = kAttentionProgram) or of an expert group.
// `pool` fits palettes; null: this thread does.
inline constexpr size_t kAttentionProgram = SIZE_MAX;
Result<Graph> BuildProgram(const Model& model, const Plan& plan, uint32_t layer, size_t group,
                           ThreadPool* pool);
std::string ProgramName(uint32_t layer, size_t group);  // "attention_3", "experts_3_0"

// Layers come round in order, so what makes room is the program whose layer is needed last: the one that ran last.
// A program that the device refuses is never tried again; the clock's report says why. One thread at a time; borrows
// model, plan, device, clock and pool, whose owner is the thread that loads.
class NpuPrograms {
 public:
  NpuPrograms(const Model& model, const Plan& plan, NpuDevice& device, RunClock& clock, ThreadPool& pool);

  // The loaded program, or nullptr when the device refuses it.
  NpuProgram* Attention(uint32_t layer);
  NpuProgram* Group(uint32_t layer, size_t group);
  bool attention_refused(uint32_t layer) const { return layers_[layer].attention.refused; }
  bool group_refused(uint32_t layer, size_t group) const { return layers_[layer].groups[group].refused; }

  // One dispatch per capacity of the group, by the cost model; for ChooseRun. Empty until first loaded.
  GroupTimes Times(uint32_t layer, size_t group) const {
    return {layers_[layer].groups[group].dispatch_seconds, layers_[layer].groups[group].dispatch_joules};
  }

  // Loads a layer's programs before they are needed, as far as the device has room; false when it ran out.
  bool Preload(uint32_t layer);
  // The same while layer `running` runs; others make room.
  void Prefetch(uint32_t layer, uint32_t running);

  // The largest sum so far of what all loaded programs held in this process.
  size_t peak_host_bytes() const;

  // A run failed: the program is not used again.
  void RefuseAttention(uint32_t layer, const std::string& reason) { Refuse(layers_[layer].attention, reason); }
  void RefuseGroup(uint32_t layer, size_t group, const std::string& reason) {
    Refuse(layers_[layer].groups[group], reason);
  }

 private:
  struct Program {
    std::string key;  // "attention_3", "experts_3_0"
    std::unique_ptr<NpuProgram> loaded;
    size_t weight_bytes = 0;  // 0: not built yet
    bool refused = false, was_loaded = false;
    std::vector<double> dispatch_seconds, dispatch_joules;  // [functions] of an expert group
  };
  struct Layer {
    Program attention;
    std::vector<Program> groups;
  };

  Program& At(uint32_t layer, size_t index) {
    return index == kAttentionProgram ? layers_[layer].attention : layers_[layer].groups[index];
  }
  // Makes room by unloading programs of other layers than `layer` and `*running`; without `running` of none. What does
  // not fit then is still tried when `must`, so that the device says why.
  NpuProgram* Load(uint32_t layer, size_t index, const uint32_t* running, bool must);
  bool MakeRoom(size_t bytes, uint32_t layer, const uint32_t* running);
  template <typename Visit>
  bool ForPrograms(uint32_t layer, const Visit& visit);
  void Refuse(Program& program, const std::string& reason);
  void Unload(Program& program);

  const Model& model_;
  const ModelConfig& config_;
  const Plan& plan_;
  NpuDevice& device_;
  RunClock& clock_;
  ThreadPool& pool_;
  std::vector<Layer> layers_;
  size_t HostBytes() const;

  size_t n_loaded_ = 0, loaded_bytes_ = 0;
  size_t peak_host_bytes_ = 0;  // before the last unloading
};

}  // namespace npumoe
