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

// The least of max(NPU, CPU) that the options allow for the energy that `choice` took, when groups may be divided: for
// every price between the sides the sum of the cheapest options is a lower bound, and the best price makes it tight
// (linear programming duality). `fixed` is done whatever is chosen.
double SplitBound(const RunChoice& choice, const RunOption& fixed, double joule_price) {
  constexpr int kPrices = 64;
  double bound = 0;
  for (int i = 0; i <= kPrices; ++i) {
    const double price = static_cast<double>(i) / kPrices;
    const auto cost_of = [&](const RunOption& option) {
      return price * option.npu + (1 - price) * option.cpu + joule_price * option.joules;
    };
    double sum = cost_of(fixed) - joule_price * choice.joules;
    for (size_t group = 0; group + 1 < choice.option_begin.size(); ++group) {
      double least = -1;
      for (uint32_t o = choice.option_begin[group]; o < choice.option_begin[group + 1]; ++o) {
        const double cost = cost_of(choice.options[o]);
        if (least < 0 || cost < least) least = cost;
      }
      if (least > 0) sum += least;
    }
    bound = std::max(bound, sum);
  }
  return bound;
}

// Tokens [first, last) of the prompt.
struct Tokens {
  uint32_t first = 0, last = 0;
  uint32_t size() const { return last - first; }
};

// Seconds of a layer's attention over some tokens.
struct AttentionTimes {
  double npu = 0;     // its programs
  double copies = 0;  // of the CPU: inputs and outputs between them
  double cpu = 0;     // what runs on the CPU instead
  double OnNpu() const { return npu + copies; }
  double Seconds() const { return OnNpu() + cpu; }
};

// What the groups of a layer and the CPU's own rows take.
struct SideTimes {
  double npu = 0, cpu = 0;     // working
  double pack = 0;             // packing, and unpacking all groups but the last
  double last_unpack = 0;      // which waits for the last group
  double device_end = 0;       // when that is through
};

class Prefill {
 public:
  Prefill(const ModelConfig& config, const Plan& plan, const NpuSpec& spec, const RoutedPrompt& prompt)
      : config_(config), plan_(plan), spec_(spec), prompt_(prompt), cpu_(ExpertCpuTimes(config, spec)) {}

  SimulatedPrefill Run(uint32_t drawn_layer) {
    const uint32_t unit = plan_.order == PrefillOrder::kChunkMajor ? plan_.chunk_tokens : plan_.moe_batch_tokens;
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) TabulateLayer(layer);
    uint32_t n_units = 0;
    for (uint32_t first = 0; first < prompt_.n_tokens; first += unit, ++n_units) {
      const Tokens all{first, std::min(prompt_.n_tokens, first + unit)};
      const uint32_t half = FirstHalf(plan_, all.size());
      if (half < all.size()) {
        any_halves_ = true;
        Wavefront({{{first, first + half}, {first + half, all.last}}}, first == 0 ? drawn_layer : config_.n_layers);
        continue;
      }
      for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
        draw_ = first == 0 && layer == drawn_layer;
        now_ = 0;
        Attention(layer, all);
        layer_seconds_[layer].attention_seconds += now_;
        const double begin = now_;
        FeedForward(layer, all, nullptr);
        layer_seconds_[layer].expert_seconds += now_ - begin;
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
    auto& joules = joules_.emplace_back();
    for (const ExpertGroup& group : plan_.layers[layer].groups) {
      auto& of_group = costs.emplace_back();
      auto& times = seconds.emplace_back();
      auto& energies = joules.emplace_back();
      for (const uint32_t capacity : group.capacities) {
        of_group.push_back(
            DispatchCost(ExpertGroupWork(config_, group.experts.size(), capacity, spec_, plan_.expert_weights), spec_));
        times.push_back(of_group.back().seconds);
        energies.push_back(of_group.back().joules);
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

  // Counts a layer's attention over some tokens, chunk by chunk.
  AttentionTimes CountAttention(uint32_t layer, Tokens tokens) {
    const AttentionPlace place = plan_.layers[layer].attention;
    const AttentionCost cost =
        ExpectedAttentionCost(config_, spec_, place, config_.IsMoeLayer(layer), plan_.chunk_tokens, tokens.first,
                              tokens.last, plan_.kv_buckets, plan_.attention_weights);
    AttentionTimes times{cost.npu_seconds, 0, cost.cpu_seconds};
    if (place == AttentionPlace::kNpu) {
      times.copies = AttentionCopySeconds(config_, spec_, tokens.size());
      out_.times.floors += (tokens.size() + plan_.chunk_tokens - 1) / plan_.chunk_tokens * spec_.dispatch_seconds.value;
    }
    out_.times.joules += cost.joules;  // the CPU's are in it
    out_.times.cpu_busy += cost.cpu_seconds;
    out_.times.npu_busy += cost.npu_seconds;
    Cpu(times.copies);
    return times;
  }

  // With nothing beside it.
  void Attention(uint32_t layer, Tokens tokens) { Alone(layer, CountAttention(layer, tokens).Seconds()); }
  void Alone(uint32_t layer, double attention) {
    const bool on_npu = plan_.layers[layer].attention == AttentionPlace::kNpu;
    Draw(on_npu ? "npu" : "cpu", "attention", now_, now_ + attention);
    out_.times.attention += attention;
    out_.times.bound += attention;
    now_ += attention;
  }

  // Two halves of a batch: one's experts while the other is in attention, layer after layer.
  void Wavefront(const std::array<Tokens, 2>& halves, uint32_t drawn_layer) {
    const uint32_t n_steps = 2 * config_.n_layers;
    for (uint32_t step = 0; step <= n_steps; ++step) {
      // The half that is in attention, and what the other half, a step behind, is in meanwhile.
      const uint32_t layer = step / 2, behind = (step - 1) / 2;
      const bool has_experts = step > 0 && config_.IsMoeLayer(behind);
      const bool beside = has_experts && step < n_steps && plan_.layers[layer].attention == AttentionPlace::kNpu;
      draw_ = step > 0 && behind == drawn_layer;
      if (step % 2 == 1) now_ = 0;
      const double begin = now_;
      AttentionTimes attention;
      if (step < n_steps) attention = CountAttention(layer, halves[step % 2]);
      if (step > 0) FeedForward(behind, halves[(step - 1) % 2], beside ? &attention : nullptr);
      if (step < n_steps) Alone(layer, beside ? attention.cpu : attention.Seconds());
      LayerPrograms& programs = layer_seconds_[std::min(layer, config_.n_layers - 1)];
      (step % 2 == 0 && step < n_steps ? programs.attention_seconds : programs.expert_seconds) += now_ - begin;
    }
  }

  // `beside`: attention of other tokens, which the NPU runs after the groups of experts; null for none.
  void FeedForward(uint32_t layer, Tokens tokens, const AttentionTimes* beside) {
    if (config_.IsMoeLayer(layer)) return Experts(layer, tokens, beside);
    const double seconds = CpuFfnSeconds(config_, spec_, config_.ffn_dim, tokens.size());
    Cpu(seconds);
    Draw("cpu", "dense", now_, now_ + seconds);
    out_.times.experts += seconds;
    out_.times.bound += seconds;
    now_ += seconds;
  }

  void Experts(uint32_t layer, Tokens tokens, const AttentionTimes* beside) {
    const LayerPlan& plan = plan_.layers[layer];
    loads_ = prompt_.Loads(layer, tokens.first, tokens.last);
    for (const uint32_t load : loads_) out_.rows.assigned += load;
    const double router = CopySeconds(2.0 * tokens.size() * config_.n_experts * kF32);
    Cpu(router);
    Draw("cpu", "router", now_, now_ + router);
    now_ += router;
    out_.times.router += router;

    if (plan_.mode == OverflowMode::kPrune) Prune(plan);
    times_.clear();
    for (size_t group = 0; group < seconds_[layer].size(); ++group) {
      times_.push_back({seconds_[layer][group], joules_[layer][group]});
    }
    const double scatter = ExpertScatterSeconds(config_, spec_, tokens.size());
    Cpu(scatter);
    const double shared = CpuFfnSeconds(config_, spec_, config_.shared_expert_dim, tokens.size());
    const RunOption other = beside == nullptr ? RunOption{} : RunOption{beside->OnNpu(), scatter + beside->copies};
    RunOption fixed{other.npu, other.cpu + shared};
    ChooseRun(plan, loads_, times_, cpu_, plan_.per_run_capacity, /*spill=*/true, fixed, plan_.joule_price, choice_);
    for (const uint32_t expert : plan.cpu_experts) fixed.cpu += cpu_.Of(loads_[expert]);
    fixed.joules = fixed.cpu * cpu_.watts;
    out_.times.bound += router + SplitBound(choice_, fixed, plan_.joule_price) + (beside == nullptr ? scatter : 0);

    const double begin = now_;
    const SideTimes sides = RunSides(layer, plan, shared);
    // Packing shares the CPU with its own rows.
    const double groups_done = std::max(begin + sides.cpu + sides.pack, sides.device_end) + sides.last_unpack;
    Draw("pack", "unpack", groups_done - sides.last_unpack, groups_done);
    Draw("cpu", "scatter", groups_done, groups_done + scatter);
    if (beside == nullptr) {
      const double longer = std::max(sides.npu, sides.cpu);
      out_.times.experts += longer;
      out_.times.pack += std::max(0.0, groups_done - begin - longer);  // rounding may leave less than nothing
      out_.times.scatter += scatter;
      now_ = groups_done + scatter;
      return;
    }
    const double attention_end = sides.device_end + beside->OnNpu();
    Draw("npu", "attention of the other half", sides.device_end, attention_end);
    now_ = std::max(groups_done + scatter + beside->copies, attention_end);
    const double longer = std::max(sides.npu + other.npu, sides.cpu + other.cpu);
    out_.times.attention += beside->OnNpu();
    out_.times.experts += longer - beside->OnNpu();
    out_.times.pack += std::max(0.0, now_ - begin - longer);
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

  // Both sides from now_ on, as NpuExperts runs them: while a group runs, the one before is unpacked and the next one
  // packed; beside that the shared expert, `shared` seconds, and the CPU's own rows.
  SideTimes RunSides(uint32_t layer, const LayerPlan& plan, double shared) {
    SideTimes sides;
    sides.cpu = shared;
    for (const uint32_t expert : plan.cpu_experts) {
      sides.cpu += cpu_.Of(loads_[expert]);
      out_.rows.cpu += loads_[expert];
    }
    jobs_.clear();
    for (size_t group = 0; group < plan.groups.size(); ++group) {
      const uint32_t index = choice_.capacity_index[group];
      if (index == kSkipGroup) continue;
      const bool on_npu = index != kGroupOnCpu;
      const uint32_t capacity = on_npu ? plan.groups[group].capacities[index] : 0;
      double rows = 0;
      for (const uint32_t expert : plan.groups[group].experts) {
        const uint32_t kept = std::min(loads_[expert], capacity);
        sides.cpu += cpu_.Of(loads_[expert] - kept);
        rows += kept;
        (on_npu ? out_.rows.spilled : out_.rows.cpu) += loads_[expert] - kept;
        if (on_npu) out_.rows.padded += capacity - kept;
      }
      if (on_npu) jobs_.push_back({&costs_[layer][group][index], rows});
    }
    Draw("cpu", "experts", now_, now_ + sides.cpu);
    RunJobs(sides);
    out_.times.npu_busy += sides.npu;
    Cpu(sides.cpu + sides.pack + sides.last_unpack);
    return sides;
  }

  void RunJobs(SideTimes& sides) {
    double packer = now_;
    sides.device_end = now_;
    const auto pack = [&](size_t job) {
      const double seconds = CopySeconds(jobs_[job].rows * config_.dim * (kF32 + kF16));
      Draw("pack", "pack", packer, packer + seconds);
      packer += seconds;
      sides.pack += seconds;
    };
    const auto unpack_seconds = [&](size_t job) { return CopySeconds(jobs_[job].rows * config_.dim * 2 * kF16); };
    if (!jobs_.empty()) pack(0);
    for (size_t job = 0; job < jobs_.size(); ++job) {
      const Cost& cost = *jobs_[job].cost;
      sides.device_end = std::max(packer, sides.device_end) + cost.seconds;
      Draw("npu", "experts", sides.device_end - cost.seconds, sides.device_end);
      if (job > 0) {
        const double seconds = unpack_seconds(job - 1);
        Draw("pack", "unpack", packer, packer + seconds);
        packer += seconds;
        sides.pack += seconds;
      }
      if (job + 1 < jobs_.size()) pack(job + 1);
      packer = std::max(packer, sides.device_end);
      sides.npu += cost.seconds;
      out_.rows.npu += static_cast<uint64_t>(jobs_[job].rows);
      ++out_.n_dispatches;
      out_.times.joules += cost.joules;
      out_.times.floors += spec_.dispatch_seconds.value;
    }
    if (!jobs_.empty()) sides.last_unpack = unpack_seconds(jobs_.size() - 1);
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
    const bool as_one = plan_.order == PrefillOrder::kWavefront && !any_halves_;
    const LoadCost loads = ExpectedLoads(layer_seconds_, spec_, as_one ? PrefillOrder::kLayerMajor : plan_.order);
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
  std::vector<std::vector<std::vector<double>>> seconds_, joules_;  // likewise
  std::vector<LayerPrograms> layer_seconds_;               // [layers], at first sums over units
  std::vector<uint32_t> loads_;
  std::vector<GroupTimes> times_;
  struct Job {
    const Cost* cost = nullptr;
    double rows = 0;
  };
  std::vector<Job> jobs_;  // groups that the NPU runs
  RunChoice choice_;
  double now_ = 0;  // since the layer's begin
  bool draw_ = false;
  bool any_halves_ = false;  // of a batch, in flight
  SimulatedPrefill out_;
};

}  // namespace

SimulatedPrefill SimulatePrefill(const ModelConfig& config, const Plan& plan, const NpuSpec& spec,
                                 const RoutedPrompt& prompt, uint32_t drawn_layer) {
  NM_CHECK(prompt.step_tokens > 0 && plan.chunk_tokens % prompt.step_tokens == 0);
  return Prefill(config, plan, spec, prompt).Run(drawn_layer);
}

}  // namespace npumoe
