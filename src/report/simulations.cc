// SPDX-License-Identifier: Apache-2.0
#include "report/simulations.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "base/check.h"
#include "base/thread_pool.h"
#include "npumoe/simulate.h"

namespace npumoe {
namespace {

constexpr uint32_t kPublishedChunks[] = {256, 512, 1024};  // of the paper

// The asked one, and those of the paper's that the prompt and the MoE batch allow.
std::vector<uint32_t> ChunksOf(const SimulateOptions& o) {
  std::vector<uint32_t> chunks{o.chunk_tokens};
  for (const uint32_t chunk : kPublishedChunks) {
    const bool fits = chunk <= o.prompt_tokens && o.moe_batch_tokens % chunk == 0;
    if (fits && chunk != o.chunk_tokens) chunks.push_back(chunk);
  }
  std::sort(chunks.begin(), chunks.end());
  return chunks;
}

// What is to be simulated, without the reports.
std::vector<Simulation> Wanted(const ReportOptions& o, const std::vector<uint32_t>& chunks) {
  const std::string other = o.simulate.expert_weights == "fp16" ? "int8" : "fp16";
  std::vector<Simulation> wanted;
  for (const std::string& model : o.models) {
    for (const std::string& weights : {o.simulate.expert_weights, other}) {
      for (const uint32_t chunk : chunks) {
        wanted.push_back({model, chunk, weights, "time", {}});
        if (weights == other) continue;
        for (const char* objective : {"energy", "edp"}) wanted.push_back({model, chunk, weights, objective, {}});
      }
    }
  }
  return wanted;
}

SimulateOptions OptionsOf(const Simulation& wanted, const SimulateOptions& shared) {
  SimulateOptions options = shared;
  options.model = wanted.model;
  options.chunk_tokens = wanted.chunk_tokens;
  options.expert_weights = wanted.expert_weights;
  options.objective = wanted.objective;
  options.placements.clear();
  // Without what the format changes nothing of, and without what takes longest to plan.
  if (wanted.expert_weights != shared.expert_weights) options.placements = {"ours", "naive", "tiers+groups", "all"};
  if (wanted.objective != "time") options.placements = {"ours"};  // the others have no objective
  return options;
}

}  // namespace

Result<Simulations> Simulations::Run(const ReportOptions& o, const ProgressFn& progress) {
  Simulations out;
  out.chunks_ = ChunksOf(o.simulate);
  out.all_ = Wanted(o, out.chunks_);
  const size_t n = out.all_.size();
  for (const Simulation& wanted : out.all_) NM_TRY(CheckSimulateOptions(OptionsOf(wanted, o.simulate)));
  std::vector<std::optional<Error>> errors(n);
  std::mutex mutex;
  size_t n_prompts = 0;            // guarded by mutex
  std::atomic<bool> stop = false;  // after a failure or as the caller wishes
  ThreadPool pool(std::max(1u, o.n_threads));
  pool.ParallelFor(n, [&](size_t i, size_t /*thread*/) {
    if (stop) return;
    size_t seen = 0;  // of this simulation's prompts; it tells of one several times
    const auto prompts_done = [&](size_t done, size_t) {
      const std::lock_guard lock(mutex);
      n_prompts += done - seen;
      seen = done;
      if (progress && !progress(n_prompts, n * o.simulate.n_seeds)) stop = true;
      return !stop;
    };
    auto made = Simulate(OptionsOf(out.all_[i], o.simulate), prompts_done);
    if (made) {
      out.all_[i].report = std::move(*made);
    } else {
      errors[i] = made.error();
      stop = true;
    }
  });
  // A real error before the cancellations that it caused.
  for (const auto& error : errors) {
    if (error && error->code != Code::kCancelled) return *error;
  }
  if (stop) return MakeError(Code::kCancelled, "report: stopped by the caller");
  return out;
}

const SimulateReport& Simulations::Of(std::string_view model, uint32_t chunk_tokens,
                                      std::string_view expert_weights) const {
  for (const Simulation& s : all_) {
    if (s.model == model && s.chunk_tokens == chunk_tokens && s.expert_weights == expert_weights &&
        s.objective == "time") {
      return s.report;
    }
  }
  NM_CHECK(false);
  return all_.front().report;
}

const SimulatedPlacement* Find(const SimulateReport& report, std::string_view placement) {
  for (const SimulatedPlacement& p : report.placements) {
    if (p.placement == placement) return &p;
  }
  return nullptr;
}

const SimulateReport& ReportOf(const ReportOptions& o, const Simulations& simulations, const std::string& model) {
  return simulations.Of(model, o.simulate.chunk_tokens, o.simulate.expert_weights);
}

}  // namespace npumoe
