// SPDX-License-Identifier: Apache-2.0
#include "simulate/prefill_model.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "moe/attention_plan.h"
#include "moe/layer_cost.h"
#include "moe/plan_cost.h"
#include "moe/planner.h"
#include "moe/run_choice.h"

namespace npumoe {
namespace {

constexpr double kF32 = 4, kF16 = 2;  // bytes

// The least of max(NPU, CPU) that the options allow when groups may be divided: for every price the sum of the cheapest
// options is a lower bound, and the best price makes it tight (linear programming duality).
double SplitBound(const RunChoice& choice, double fixed_cpu) {
  constexpr int kPrices = 64;
  double bound = 0;
  for (int i = 0; i <= kPrices; ++i) {
    const double price = static_cast<double>(i) / kPrices;
    double sum = (1 - price) * fixed_cpu;
    for (size_t group = 0; group + 1 < choice.option_begin.size(); ++group) {
      double least = -1;
      for (uint32_t o = choice.option_begin[group]; o < choice.option_begin[group + 1]; ++o) {
        const double cost = price * choice.options[o].npu + (1 - price) * choice.options[o].cpu;
        if (least < 0 || cost < least) least = cost;
      }
      if (least > 0) sum += least;
    }
    bound = std::max(bound, sum);
  }
  return bound;
}

class Prefill {
 public:
  Prefill(const ModelConfig& config, const Plan& plan, const NpuSpec& spec, const RoutedPrompt& prompt)
      : config_(config), plan_(plan), spec_(spec), prompt_(prompt), cpu_(ExpertCpuTimes(config, spec)) {}

  SimulatedPrefill Run(uint32_t drawn_layer) {
    const uint32_t unit = plan_.order == PrefillOrder::kLayerMajor ? plan_.moe_batch_tokens : plan_.chunk_tokens;
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) TabulateLayer(layer);
    uint32_t n_units = 0;
    for (uint32_t first = 0; first < prompt_.n_tokens; first += unit, ++n_units) {
      const uint32_t last = std::min(prompt_.n_tokens, first + unit);
      for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
        draw_ = first == 0 && layer == drawn_layer;
        layer_now_ = 0;
        Attention(layer, first, last);
        if (config_.IsMoeLayer(layer)) Experts(layer, first, last);
      }
    }
    Loads(n_units);
    const double output = CpuExpertCost(1, 2.0 * config_.dim * config_.vocab_size,
                                        kAssumedFileBytesPerWeight * config_.dim * config_.vocab_size, spec_)
                              .seconds;
    out_.times.output += output;
    Cpu(output);
    out_.times.bound += output;
    return std::move(out_);
  }

 private:
  // Costs of every group at every capacity.
  void TabulateLayer(uint32_t layer) {
    auto& costs = costs_.emplace_back();
    auto& seconds = seconds_.emplace_back();
    for (const ExpertGroup& group : plan_.layers[layer].groups) {
      auto& of_group = costs.emplace_back();
      auto& times = seconds.emplace_back();
      for (const uint32_t capacity : group.capacities) {
        of_group.push_back(
            DispatchCost(ExpertGroupWork(config_, group.experts.size(), capacity, spec_, plan_.expert_weights), spec_));
        times.push_back(of_group.back().seconds);
      }
    }
    layer_seconds_.emplace_back();
  }

  void Cpu(double seconds) {
    out_.times.cpu_busy += seconds;
    out_.times.joules += seconds * spec_.cpu_watts.value;
  }
  double CopySeconds(double bytes) const { return bytes / spec_.copy_bytes_per_second.value; }
  void Draw(const char* track, const char* name, double begin, double end) {
    if (draw_ && end > begin) out_.zones.push_back({track, name, begin, end});
  }

  // Chunk by chunk; what ExpectedAttentionCost says of a prefix, less what it says of the shorter one before.
  void Attention(uint32_t layer, uint32_t first, uint32_t last) {
    const AttentionPlace place = plan_.layers[layer].attention;
    const auto until = [&](uint32_t tokens) {
      return tokens == 0 ? AttentionCost{}
                         : ExpectedAttentionCost(config_, spec_, place, config_.IsMoeLayer(layer), plan_.chunk_tokens,
                                                 tokens, plan_.kv_buckets, plan_.attention_weights);
    };
    const bool same = layer > 0 && place == plan_.layers[layer - 1].attention &&
                      config_.IsMoeLayer(layer) == config_.IsMoeLayer(layer - 1);
    if (!same) {
      const AttentionCost all = until(last), before = until(first);
      attention_ = {all.npu_seconds - before.npu_seconds, all.cpu_seconds - before.cpu_seconds,
                    all.joules - before.joules};
    }
    out_.times.joules += attention_.joules;  // the CPU's are in it
    out_.times.cpu_busy += attention_.cpu_seconds;
    out_.times.npu_busy += attention_.npu_seconds;
    double copies = 0;
    if (place == AttentionPlace::kNpu) {
      // Inputs and outputs of the stage cross from and to f32 (see NpuAttention).
      const double kv = static_cast<double>(config_.n_kv_heads) * config_.head_dim;
      copies = CopySeconds((last - first) * (2.0 * config_.dim + 2 * kv) * kF16);
      out_.times.floors += (last - first + plan_.chunk_tokens - 1) / plan_.chunk_tokens * spec_.dispatch_seconds.value;
    }
    Cpu(copies);
    const double seconds = attention_.npu_seconds + attention_.cpu_seconds + copies;
    Draw(place == AttentionPlace::kNpu ? "npu" : "cpu", "attention", 0, seconds);
    out_.times.attention += seconds;
    out_.times.bound += seconds;
    layer_now_ = seconds;
    layer_seconds_[layer].attention_seconds += seconds;
  }

  void Experts(uint32_t layer, uint32_t first, uint32_t last) {
    const LayerPlan& plan = plan_.layers[layer];
    const double tokens = last - first;
    loads_ = prompt_.Loads(layer, first, last);
    for (const uint32_t load : loads_) out_.rows.assigned += load;
    const double router = CopySeconds(2 * tokens * config_.n_experts * kF32);
    Cpu(router);
    Draw("cpu", "router", layer_now_, layer_now_ + router);
    layer_now_ += router;

    if (plan_.mode == OverflowMode::kPrune) Prune(plan);
    times_.clear();
    for (const auto& seconds : seconds_[layer]) times_.push_back({seconds});
    ChooseRun(plan, loads_, times_, cpu_, plan_.per_run_capacity, /*spill=*/true, choice_);
    const double longest = RunSides(layer, plan);

    double fixed_cpu = 0;
    for (const uint32_t expert : plan.cpu_experts) fixed_cpu += cpu_.Of(loads_[expert]);
    out_.times.bound += router + SplitBound(choice_, fixed_cpu);

    const double scatter = CopySeconds(2 * tokens * config_.top_k * config_.dim * kF32);
    Cpu(scatter);
    Draw("cpu", "scatter", layer_now_, layer_now_ + scatter);
    out_.times.router += router;
    out_.times.scatter += scatter;
    out_.times.bound += scatter;
    layer_seconds_[layer].expert_seconds += router + longest + scatter;
  }

  // Rows above the largest capacity are computed nowhere.
  void Prune(const LayerPlan& plan) {
    for (const ExpertGroup& group : plan.groups) {
      for (const uint32_t expert : group.experts) {
        const uint32_t kept = std::min(loads_[expert], group.capacities.back());
        out_.rows.dropped += loads_[expert] - kept;
        loads_[expert] = kept;
      }
    }
  }

  // Both sides from layer_now_ on, as NpuExperts runs them: group after group with packing beside, and the CPU's own
  // rows. Returns what they took.
  double RunSides(uint32_t layer, const LayerPlan& plan) {
    const double begin = layer_now_;
    double packer = begin, device = begin, packing = 0, npu = 0, rows_before = 0;
    const auto pack = [&](double rows, const char* name) {
      const double seconds = CopySeconds(rows * config_.dim * (kF32 + kF16));
      Draw("pack", name, packer, packer + seconds);
      packer += seconds;
      packing += seconds;
    };
    double cpu = 0;
    for (const uint32_t expert : plan.cpu_experts) {
      cpu += cpu_.Of(loads_[expert]);
      out_.rows.cpu += loads_[expert];
    }
    bool any = false;
    for (size_t group = 0; group < plan.groups.size(); ++group) {
      const uint32_t index = choice_.capacity_index[group];
      if (index == kSkipGroup) continue;
      const bool on_npu = index != kGroupOnCpu;
      const uint32_t capacity = on_npu ? plan.groups[group].capacities[index] : 0;
      double rows = 0;
      for (const uint32_t expert : plan.groups[group].experts) {
        const uint32_t kept = std::min(loads_[expert], capacity);
        cpu += cpu_.Of(loads_[expert] - kept);
        rows += kept;
        (on_npu ? out_.rows.spilled : out_.rows.cpu) += loads_[expert] - kept;
        if (on_npu) out_.rows.padded += capacity - kept;
      }
      if (!on_npu) continue;
      out_.rows.npu += static_cast<uint64_t>(rows);
      ++out_.n_dispatches;
      const Cost& cost = costs_[layer][group][index];
      pack(rows, "pack");  // beside the group before
      if (any) {
        packer = std::max(packer, device);
        pack(rows_before, "unpack");
      }
      device = std::max(packer, device) + cost.seconds;
      Draw("npu", "experts", device - cost.seconds, device);
      npu += cost.seconds;
      out_.times.joules += cost.joules;
      out_.times.floors += spec_.dispatch_seconds.value;
      any = true;
      rows_before = rows;
    }
    if (any) {
      packer = std::max(packer, device);
      pack(rows_before, "unpack");
    }
    // Packing shares the CPU with its own rows.
    const double cpu_end = begin + cpu + packing;
    Draw("cpu", "experts", begin, begin + cpu);
    const double end = std::max({cpu_end, packer, device});
    const double longer = std::max(npu, cpu);
    out_.times.experts += longer;
    out_.times.pack += std::max(0.0, end - begin - longer);  // rounding may leave less than nothing
    out_.times.npu_busy += npu;
    Cpu(cpu + packing);
    layer_now_ = end;
    return end - begin;
  }

  // Programs that do not all stay loaded, for every chunk or batch anew.
  void Loads(uint32_t n_units) {
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
      LayerPrograms& p = layer_seconds_[layer];
      p.attention_seconds /= n_units;
      p.expert_seconds /= n_units;
      p.attention_on_npu = plan_.layers[layer].attention == AttentionPlace::kNpu;
      if (p.attention_on_npu) {
        p.bytes.push_back(AttentionWeightBytes(config_, config_.IsMoeLayer(layer), plan_.attention_weights));
      }
      for (const size_t bytes : ProgramBytes(plan_.layers[layer])) p.bytes.push_back(bytes);
    }
    const LoadCost loads = ExpectedLoads(layer_seconds_, spec_);
    out_.times.load = n_units * loads.wait_seconds;
    out_.times.bound += out_.times.load;
    out_.times.joules += n_units * loads.load_seconds * spec_.watts_base.value;
  }

  // One program per group. Graphs of one expert each count as functions of as few programs as their bytes allow: no
  // machine keeps thousands of programs loaded, and the paper's baselines did run.
  std::vector<size_t> ProgramBytes(const LayerPlan& plan) const {
    const size_t expert = ExpertWeightBytes(config_, plan_.expert_weights);
    std::vector<size_t> programs;
    size_t singles = 0;
    for (const ExpertGroup& group : plan.groups) {
      if (group.experts.size() == 1) ++singles;
      if (group.experts.size() > 1) programs.push_back(group.experts.size() * expert + kGraphConstantBytes);
    }
    const size_t per_program = std::max<size_t>(1, (spec_.max_program_weight_bytes - kGraphConstantBytes) / expert);
    for (; singles > 0; singles -= std::min(singles, per_program)) {
      programs.push_back(std::min(singles, per_program) * expert + kGraphConstantBytes);
    }
    return programs;
  }

  const ModelConfig& config_;
  const Plan& plan_;
  const NpuSpec& spec_;
  const RoutedPrompt& prompt_;
  CpuTimes cpu_;
  std::vector<std::vector<std::vector<Cost>>> costs_;      // [layers][groups][capacities]
  std::vector<std::vector<std::vector<double>>> seconds_;  // likewise
  std::vector<LayerPrograms> layer_seconds_;               // [layers], at first sums over units
  AttentionCost attention_;                                // of the layer before, if it was the same
  std::vector<uint32_t> loads_;
  std::vector<GroupTimes> times_;
  RunChoice choice_;
  double layer_now_ = 0;  // since the layer's begin
  bool draw_ = false;
  SimulatedPrefill out_;
};

}  // namespace

SimulatedPrefill SimulatePrefill(const ModelConfig& config, const Plan& plan, const NpuSpec& spec,
                                 const RoutedPrompt& prompt, uint32_t drawn_layer) {
  NM_CHECK(prompt.step_tokens > 0 && plan.chunk_tokens % prompt.step_tokens == 0);
  return Prefill(config, plan, spec, prompt).Run(drawn_layer);
}

}  // namespace npumoe
