// SPDX-License-Identifier: Apache-2.0
// Sampling chain in llama.cpp's default order: repeat penalty, top-k, top-p, min-p, temperature, draw.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "npumoe/engine.h"

namespace npumoe {
namespace {

struct Candidate {
  int32_t id;
  float logit;
  float probability;
};

// Higher logit first; ties go to the lower id.
bool Before(const Candidate& a, const Candidate& b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

// Softmax over `candidates`, which are sorted; returns nothing, fills probability.
void FillProbabilities(std::span<Candidate> candidates) {
  double sum = 0;
  for (Candidate& c : candidates) {
    c.probability = std::exp(c.logit - candidates.front().logit);
    sum += c.probability;
  }
  for (Candidate& c : candidates) c.probability = static_cast<float>(c.probability / sum);
}

}  // namespace

struct Sampler::Impl {
  SamplerParams params;
  Random random;
  std::vector<Candidate> candidates;

  explicit Impl(const SamplerParams& p) : params(p), random(p.seed) {}

  // Fills candidates with the logits above -inf, penalised. Fails on NaN and +inf: a model that gives them is broken,
  // and the other logits are no better.
  Status Collect(std::span<const float> logits, std::span<const int32_t> history) {
    candidates.clear();
    for (size_t id = 0; id < logits.size(); ++id) {
      if (std::isnan(logits[id]) || logits[id] == std::numeric_limits<float>::infinity()) {
        return MakeError(Code::kUnsupported, "sampler: the logit of token {} is {}", id, logits[id]);
      }
      if (std::isfinite(logits[id])) candidates.push_back({static_cast<int32_t>(id), logits[id], 0});
    }
    if (candidates.empty()) {
      return MakeError(Code::kUnsupported, "sampler: none of {} logits is finite", logits.size());
    }
    if (params.repeat_penalty == 1.0f) return Ok{};
    const size_t n = std::min<size_t>(history.size(), params.repeat_last_n);
    const auto recent = history.last(n);
    for (Candidate& c : candidates) {
      if (std::find(recent.begin(), recent.end(), c.id) == recent.end()) continue;
      c.logit = c.logit > 0 ? c.logit / params.repeat_penalty : c.logit * params.repeat_penalty;
    }
    return Ok{};
  }

  // Sorts and cuts candidates by top-k, top-p and min-p; at least one stays.
  void Cut() {
    const size_t keep = params.top_k == 0 ? candidates.size() : std::min<size_t>(params.top_k, candidates.size());
    std::partial_sort(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(keep), candidates.end(), Before);
    candidates.resize(keep);
    FillProbabilities(candidates);
    size_t n = candidates.size();
    if (params.top_p < 1.0f) {
      double sum = 0;
      for (n = 0; n < candidates.size() && sum < double{params.top_p};) sum += candidates[n++].probability;
      n = std::max<size_t>(n, 1);
    }
    const float floor = params.min_p * candidates.front().probability;
    while (n > 1 && candidates[n - 1].probability < floor) --n;
    candidates.resize(n);
  }

  int32_t Draw() {
    for (Candidate& c : candidates) c.logit /= params.temperature;
    FillProbabilities(candidates);
    double left = random.Uniform();
    for (const Candidate& c : candidates) {
      left -= c.probability;
      if (left < 0) return c.id;
    }
    return candidates.back().id;  // the probabilities summed to a little less than 1
  }
};

Result<Sampler> Sampler::Make(const SamplerParams& params) {
  const auto bad = [](const char* name, const char* wanted, float got) {
    return MakeError(Code::kInvalidArgument, "sampler: {} is out of range, wanted {}, got {}", name, wanted, got);
  };
  // Negated comparisons refuse NaN too.
  if (!(params.temperature >= 0 && params.temperature <= 1e6f)) return bad("temperature", "0..1e6", params.temperature);
  if (!(params.top_p >= 0 && params.top_p <= 1)) return bad("top-p", "0..1", params.top_p);
  if (!(params.min_p >= 0 && params.min_p <= 1)) return bad("min-p", "0..1", params.min_p);
  if (!(params.repeat_penalty > 0 && params.repeat_penalty <= 1e6f)) {
    return bad("repeat-penalty", "above 0 to 1e6", params.repeat_penalty);
  }
  return Sampler(std::make_unique<Impl>(params));
}

Result<int32_t> Sampler::Sample(std::span<const float> logits, std::span<const int32_t> history) {
  NM_TRY(impl_->Collect(logits, history));
  auto& candidates = impl_->candidates;
  if (impl_->params.temperature == 0) return std::min_element(candidates.begin(), candidates.end(), Before)->id;
  impl_->Cut();
  return impl_->Draw();
}

Sampler::Sampler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;
Sampler::~Sampler() = default;

}  // namespace npumoe
