// SPDX-License-Identifier: Apache-2.0
// What the CPU does around the experts of one MoE layer at the shape of Qwen3-30B, prefilling 4,096 tokens: choose
// experts, sort the choices, choose capacities, pack rows into fp16 columns, scatter outputs back. Packing and
// scattering are judged by the machine's copy bandwidth, measured next to every sample with the same threads.
// routing_bench [threads]
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <vector>

#include "base/cache_lines.h"
#include "base/random.h"
#include "kernels/columns.h"
#include "kernels/scatter.h"
#include "moe/dispatch.h"
#include "moe/router.h"
#include "moe/run_choice.h"
#include "npu/cost.h"
#include "report.h"
#include "roof.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

constexpr size_t kSamples = 31;
constexpr size_t kTokens = 4096, kDim = 2048, kTopK = 8, kExpertDim = 768;  // Qwen3-30B-A3B's config.json
constexpr uint32_t kExperts = 128;
constexpr uint32_t kCapacities[] = {128, 256, 384, 512};  // assumed: multiples of half the mean load of 256
constexpr double kSkew = 0.4;                             // assumed: spread of the experts' popularity, in logits
constexpr size_t kCopyBytes = size_t{256} << 20;          // beyond the caches, like the packed rows
constexpr float kScale = 2.0f;                            // of outputs, as plans use it

// One layer's routing for one batch, and where its rows go.
struct Layer {
  std::vector<float> logits, scratch, weights;  // [tokens, experts], the same, [tokens, top_k]
  std::vector<uint32_t> experts;                // [tokens, top_k]
  Dispatch dispatch;
  std::vector<uint32_t> loads;
  LayerPlan plan;
  std::vector<std::vector<double>> npu_seconds;
  std::vector<GroupTimes> times;
  CpuTimes cpu;
  RunChoice choice;
};

ModelConfig Config() {
  ModelConfig config;
  config.n_experts = kExperts;
  config.top_k = kTopK;
  config.router = RouterRule::kSoftmaxTopK;
  config.renormalize_top_k = true;
  return config;
}

Layer MakeLayer() {
  Layer layer;
  Random random(1);
  layer.logits.resize(kTokens * kExperts);
  layer.scratch.resize(layer.logits.size());
  layer.weights.resize(kTokens * kTopK);
  layer.experts.resize(kTokens * kTopK);
  layer.dispatch.Reserve(kTokens, kTopK, kExperts);
  layer.loads.resize(kExperts);
  std::vector<double> popularity(kExperts);
  for (double& value : popularity) value = kSkew * random.Gaussian();
  for (size_t i = 0; i < layer.logits.size(); ++i) {
    layer.logits[i] = static_cast<float>(popularity[i % kExperts] + random.Gaussian());
  }
  return layer;
}

// Groups of `group_size` experts with four capacities each, priced for an M2 Max with 8-bit weights.
void UsePlan(size_t group_size, Layer& layer) {
  const NpuSpec& spec = **FindSpec("m2-max");
  layer.plan.groups.clear();
  layer.npu_seconds.clear();
  layer.times.clear();
  const double n = static_cast<double>(group_size), expert_weights = 3.0 * kDim * kExpertDim;
  for (uint32_t first = 0; first < kExperts; first += static_cast<uint32_t>(group_size)) {
    ExpertGroup group;
    group.experts.resize(group_size);
    std::iota(group.experts.begin(), group.experts.end(), first);
    group.capacities.assign(std::begin(kCapacities), std::end(kCapacities));
    layer.npu_seconds.emplace_back();
    for (const double capacity : kCapacities) {
      Work work;
      AddProduct({capacity, kDim, kExpertDim, 3 * n, 1.0 * kDim * kExpertDim}, spec, work);
      work.weight_bytes = expert_weights * n;
      work.io_bytes = 4.0 * kDim * n * capacity;
      layer.npu_seconds.back().push_back(DispatchCost(work, spec).seconds);
    }
    layer.plan.groups.push_back(std::move(group));
  }
  for (const auto& seconds : layer.npu_seconds) layer.times.push_back({seconds, {}});
  layer.cpu = {CpuExpertCost(1, 2 * expert_weights, 0, spec).seconds,
               CpuExpertCost(1, 0, expert_weights, spec).seconds};
}

void RouteAll(ThreadPool& threads, Layer& layer) {
  static const ModelConfig config = Config();
  constexpr size_t kPiece = 64;  // tokens per task
  threads.ParallelFor(kTokens / kPiece, [&](size_t task, size_t) {
    for (size_t token = task * kPiece; token < (task + 1) * kPiece; ++token) {
      Route(config, std::span(layer.logits).subspan(token * kExperts, kExperts),
            std::span(layer.scratch).subspan(token * kExperts, kExperts),
            std::span(layer.experts).subspan(token * kTopK, kTopK),
            std::span(layer.weights).subspan(token * kTopK, kTopK));
    }
  });
}

void Sort(Layer& layer) {
  BuildDispatch(layer.experts, layer.weights, kTopK, kExperts, layer.dispatch);
  for (uint32_t expert = 0; expert < kExperts; ++expert) layer.loads[expert] = layer.dispatch.Load(expert);
}

void Choose(Layer& layer) {
  ChooseRun(layer.plan, layer.loads, layer.times, layer.cpu, /*dynamic=*/true, /*spill=*/true, {}, 0, layer.choice);
}

// Columns of one expert in a program's input and output.
struct Columns {
  size_t begin = 0;     // in the buffers
  uint32_t width = 0;   // capacity
  uint32_t n_rows = 0;  // of which are used
};

// Rows and columns of the chosen run.
struct Rows {
  explicit Rows(const Layer& layer) : x(kTokens * kDim), y(kTokens * kDim) {
    Random random(2);
    for (float& value : x) value = static_cast<float>(random.Gaussian());
    size_t n_halves = 0;
    columns.resize(kExperts);
    outputs.resize(kExperts);
    for (size_t group = 0; group < layer.plan.groups.size(); ++group) {
      const uint32_t index = layer.choice.capacity_index[group];
      if (index == kSkipGroup || index == kGroupOnCpu) continue;
      for (const uint32_t expert : layer.plan.groups[group].experts) {
        const uint32_t width = layer.plan.groups[group].capacities[index];
        columns[expert] = {n_halves, width, std::min(layer.loads[expert], width)};
        outputs[expert].n_halves = columns[expert].n_rows;
        n_rows += columns[expert].n_rows;
        n_halves += width * kDim;
      }
    }
    in.resize(n_halves);
    out.resize(n_halves);
    halves.resize(layer.dispatch.slots.size() * kDim);
    on_cpu.resize(layer.dispatch.slots.size() * kDim, 0.25f);
  }

  double RowBytes() const { return static_cast<double>(n_rows * kDim * sizeof(uint16_t)); }
  // Each packed row is read as f32, every column written as fp16, zeros included.
  double PackBytes() const { return 2 * RowBytes() + static_cast<double>(in.size() * sizeof(uint16_t)); }
  // Each row is read and written as fp16; columns that hold no row are not touched.
  double UnpackBytes() const { return 2 * RowBytes(); }
  // Each unpacked row is read as fp16, each spilled row as f32, each token's sum read and written as f32.
  double SumBytes() const {
    const size_t n_spilled = on_cpu.size() / kDim - n_rows;
    return RowBytes() + static_cast<double>((n_spilled + 2 * kTokens) * kDim * sizeof(float));
  }

  CacheLines<float> x, y;                  // [tokens, dim]
  std::vector<Columns> columns;       // [experts]
  CacheLines<uint16_t> in, out;            // [dim, width] of every expert
  CacheLines<uint16_t> halves;             // [slots, dim] unpacked outputs
  CacheLines<float> on_cpu;                // [slots, dim] rows computed by the CPU
  std::vector<ExpertOutput> outputs;  // [experts]
  size_t n_rows = 0;
};

// What a thread lists the rows of one expert in.
struct RowLists {
  explicit RowLists(size_t n_threads) : from(n_threads), to(n_threads) {
    for (auto& list : from) list.resize(kTokens);
    for (auto& list : to) list.resize(kTokens);
  }
  std::vector<std::vector<const float*>> from;
  std::vector<std::vector<uint16_t*>> to;
};

void PackAll(const Layer& layer, ThreadPool& threads, RowLists& lists, Rows& rows) {
  threads.ParallelFor(kExperts, [&](size_t expert, size_t thread) {
    const Columns& columns = rows.columns[expert];
    const Slot* const slots = layer.dispatch.slots.data() + layer.dispatch.expert_begin[expert];
    std::vector<const float*>& list = lists.from[thread];
    for (uint32_t i = 0; i < columns.n_rows; ++i) list[i] = rows.x.data() + slots[i].token * kDim;
    PackColumns({list.data(), columns.n_rows}, kDim, columns.width, rows.in.data() + columns.begin);
  });
}

// False if a value is not finite.
bool UnpackAll(const Layer& layer, ThreadPool& threads, RowLists& lists, Rows& rows) {
  std::atomic<bool> finite{true};
  threads.ParallelFor(kExperts, [&](size_t expert, size_t thread) {
    const Columns& columns = rows.columns[expert];
    uint16_t* const first = rows.halves.data() + layer.dispatch.expert_begin[expert] * kDim;
    std::vector<uint16_t*>& list = lists.to[thread];
    for (uint32_t i = 0; i < columns.n_rows; ++i) list[i] = first + i * kDim;
    if (!UnpackHalves(rows.out.data() + columns.begin, kDim, columns.width, {list.data(), columns.n_rows})) {
      finite.store(false);
    }
  });
  return finite.load();
}

void SumAll(const Layer& layer, Scatter& scatter, Rows& rows) {
  const Dispatch& dispatch = layer.dispatch;
  scatter.Add({rows.outputs,
               dispatch.expert_begin,
               dispatch.slot_of_choice,
               layer.weights,
               kTopK,
               rows.halves.data(),
               kDim,
               kScale,
               {rows.on_cpu.data(), dispatch.slots.size(), kDim, kDim}},
              {rows.y.data(), kTokens, kDim, kDim});
}

// Every packed value, then every 37th token's sums, against the definitions.
bool ResultsAreRight(const Layer& layer, const Rows& rows) {
  for (size_t expert = 0; expert < kExperts; ++expert) {
    const Columns& columns = rows.columns[expert];
    const Slot* const slots = layer.dispatch.slots.data() + layer.dispatch.expert_begin[expert];
    for (size_t channel = 0; channel < kDim; ++channel) {
      for (size_t i = 0; i < columns.width; ++i) {
        const uint16_t want = i < columns.n_rows ? F32ToF16(rows.x[slots[i].token * kDim + channel]) : uint16_t{0};
        if (rows.in[columns.begin + channel * columns.width + i] != want) return false;
      }
    }
  }
  std::vector<float> y(kDim);
  for (size_t token = 0; token < kTokens; token += 37) {
    std::fill(y.begin(), y.end(), 0.0f);
    for (size_t choice = token * kTopK; choice < (token + 1) * kTopK; ++choice) {
      const uint32_t slot = layer.dispatch.slot_of_choice[choice], expert = layer.experts[choice];
      const Columns& columns = rows.columns[expert];
      const uint32_t column = slot - layer.dispatch.expert_begin[expert];
      for (size_t i = 0; i < kDim; ++i) {
        const float value = column < columns.n_rows
                                ? F16ToF32(rows.out[columns.begin + i * columns.width + column]) * kScale
                                : rows.on_cpu[slot * kDim + i];
        y[i] += layer.weights[choice] * value;
      }
    }
    if (std::memcmp(y.data(), rows.y.data() + token * kDim, kDim * sizeof(float)) != 0) return false;
  }
  return true;
}

// Medians of the parts of a decision, for groups of several sizes.
void ReportDecision(ThreadPool& threads, Layer& layer) {
  const Clock clock = ClockFor(threads.n_threads());
  std::vector<double> route, sort;
  for (size_t sample = 0; sample < kSamples; ++sample) {
    route.push_back(Seconds(clock, [&] { RouteAll(threads, layer); }));
    sort.push_back(Seconds(clock, [&] { Sort(layer); }));
  }
  const Spread routed = SpreadOf(route), sorted = SpreadOf(sort);
  fmt::print("top-k     {:7.1f} us +-{:5.1f}  experts and weights from logits\n", routed.median * 1e6,
             routed.mad * 1e6);
  fmt::print("dispatch  {:7.1f} us +-{:5.1f}  choices sorted by expert\n", sorted.median * 1e6, sorted.mad * 1e6);
  for (const size_t group_size : {1, 4, 8, 16, 32}) {
    UsePlan(group_size, layer);
    std::vector<double> choose;
    for (size_t sample = 0; sample < kSamples; ++sample) choose.push_back(Seconds(clock, [&] { Choose(layer); }));
    const Spread chosen = SpreadOf(choose);
    fmt::print("choice    {:7.1f} us +-{:5.1f}  capacities for groups of {:2}: decision {:.1f} us of 200\n",
               chosen.median * 1e6, chosen.mad * 1e6, group_size, (chosen.median + sorted.median) * 1e6);
  }
}

struct Samples {
  const char* name;
  double n_bytes;
  std::vector<double> seconds, shares;  // share of the copy roof, percent

  void Add(double sample_seconds, double roof) {
    seconds.push_back(sample_seconds);
    shares.push_back(100 * n_bytes / sample_seconds / roof);
  }
  void Print() const {
    const Spread time = SpreadOf(seconds), share = SpreadOf(shares);
    fmt::print("{:<14} {:6.1f} MB  {:6.2f} ms +-{:5.2f}  {:5.2f} GB/s  {:5.1f} % +-{:4.1f} of copying\n", name,
               n_bytes * 1e-6, time.median * 1e3, time.mad * 1e3, n_bytes / time.median * 1e-9, share.median,
               share.mad);
  }
};

bool ReportRows(ThreadPool& threads, Layer& layer) {
  UsePlan(8, layer);
  Choose(layer);
  Rows rows(layer);
  RowLists lists(threads.n_threads());
  Scatter scatter(threads);
  PackAll(layer, threads, lists, rows);
  rows.out = rows.in;  // experts that give back what they get
  if (!UnpackAll(layer, threads, lists, rows)) return false;
  SumAll(layer, scatter, rows);
  if (!ResultsAreRight(layer, rows)) return false;

  const CacheLines<std::byte> from(kCopyBytes);
  CacheLines<std::byte> to(kCopyBytes);
  const double n_bytes = rows.PackBytes() + rows.UnpackBytes() + rows.SumBytes();
  Samples copy{"copy", 2.0 * kCopyBytes, {}, {}}, pack{"pack", rows.PackBytes(), {}, {}},
      unpack{"unpack", rows.UnpackBytes(), {}, {}}, sum{"sum", rows.SumBytes(), {}, {}}, all{"all", n_bytes, {}, {}};
  const Clock clock = ClockFor(threads.n_threads());
  for (size_t sample = 0; sample < kSamples; ++sample) {
    const double roof = MeasureCopyRoof(threads, from, to);
    const double packed = Seconds(clock, [&] { PackAll(layer, threads, lists, rows); });
    const double unpacked = Seconds(clock, [&] { UnpackAll(layer, threads, lists, rows); });
    const double summed = Seconds(clock, [&] { SumAll(layer, scatter, rows); });
    copy.Add(2.0 * kCopyBytes / roof, roof);
    pack.Add(packed, roof);
    unpack.Add(unpacked, roof);
    sum.Add(summed, roof);
    all.Add(packed + unpacked + summed, roof);
  }
  fmt::print("{} of {} rows as columns, {:.1f} % of columns padded; scatter = unpack to fp16 rows + sum\n", rows.n_rows,
             kTokens * kTopK,
             100.0 * (1.0 - static_cast<double>(rows.n_rows * kDim) / static_cast<double>(rows.in.size())));
  for (const Samples* samples : {&copy, &pack, &unpack, &sum, &all}) samples->Print();
  return true;
}

}  // namespace
}  // namespace npumoe

int main(int argc, char** argv) {
  using namespace npumoe;
  RequireRelease();
  const size_t n_threads = argc > 1 ? std::max<size_t>(1, std::strtoul(argv[1], nullptr, 10)) : 2;
  ThreadPool threads(n_threads);
  fmt::print("{}\n", MachineLine(n_threads));
  fmt::print("one layer: {} tokens, {} experts, top-{}, dim {}\n", kTokens, kExperts, kTopK, kDim);
  Layer layer = MakeLayer();
  ReportDecision(threads, layer);
  if (!ReportRows(threads, layer)) {
    fmt::print("wrong results\n");
    return 1;
  }
  return 0;
}
