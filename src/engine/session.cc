// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/check.h"
#include "engine/engine_impl.h"
#include "engine/system.h"

namespace npumoe {
namespace {

// Shows a forward pass to a log of choices, if there is one, as long as it lives.
class Watched {
 public:
  Watched(Forward& forward, std::optional<ChoiceLog>& choices) : forward_(forward) {
    forward_.Watch(choices ? &*choices : nullptr);
  }
  ~Watched() { forward_.Watch(nullptr); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  Forward& forward_;
};

}  // namespace

Status Session::Impl::CheckTokens(std::span<const int32_t> added) const {
  if (added.empty()) return MakeError(Code::kInvalidArgument, "session: no tokens to append");
  const size_t vocab_size = engine.model.config().vocab_size;
  for (const int32_t id : added) {
    if (id < 0 || static_cast<size_t>(id) >= vocab_size) {
      return MakeError(Code::kInvalidArgument, "session: token id {} is outside the vocabulary of {}", id, vocab_size);
    }
  }
  if (added.size() > kv.capacity() - tokens.size()) {
    return MakeError(Code::kInvalidArgument,
                     "context: {} tokens needed, {} available: shorten the prompt or raise the context size (-c)",
                     tokens.size() + added.size(), kv.capacity());
  }
  return Ok{};
}

Status Session::Impl::RunSpan(std::span<const int32_t> ids, size_t first_position, LogitRows rows, std::span<float> out,
                              const ProgressFn& progress, size_t n_total, NpuLayers* npu) {
  const size_t vocab_size = engine.model.config().vocab_size;
  const size_t chunk = npu != nullptr ? BatchTokens(npu->plan(), kv.capacity()) : engine.options.chunk_tokens;
  for (size_t begin = 0; begin < ids.size();) {
    const size_t n = std::min(chunk, ids.size() - begin);
    const bool last = begin + n == ids.size();
    const size_t position = first_position + begin;
    LogitRows chunk_rows = rows == LogitRows::kLast && !last ? LogitRows::kNone : rows;
    auto chunk_out = out;
    if (rows == LogitRows::kMany) {
      // Rows belong to the last ids; those not handed out yet are as many as `out` still holds.
      const size_t first = std::max(begin, ids.size() - out.size() / vocab_size);
      const size_t n_rows = first < begin + n ? begin + n - first : 0;
      if (n_rows == 0) chunk_rows = LogitRows::kNone;
      chunk_out = out.first(n_rows * vocab_size);
      out = out.subspan(n_rows * vocab_size);
    }
    NM_TRY(engine.forward.Run(ids.subspan(begin, n), position, kv, cached_long, chunk_rows,
                              {&progress, position, n_total}, chunk_out, npu));
    begin += n;
    n_cached = first_position + begin;
  }
  return Ok{};
}

Status Session::Impl::Advance(std::span<const int32_t> added, LogitRows rows, std::span<float> out,
                              const ProgressFn& progress) {
  NM_TRY(CheckTokens(added));
  // One token is decode, and that is the CPU's.
  NpuLayers* const npu = added.size() > 1 ? engine.npu.get() : nullptr;
  if (choices) choices->Begin(tokens.size(), added.size());
  const Watched watched(engine.forward, choices);
  Trace* const recorded = engine.options.trace ? &trace : nullptr;
  if (npu == nullptr) {
    // Real time has no place in a trace of a virtual clock.
    engine.forward.Record(engine.npu == nullptr ? recorded : nullptr);
    const Status status = Prefill(added, rows, out, progress, nullptr);
    engine.forward.Record(nullptr);
    return status;
  }
  npu->BeginPrefill(report, recorded);
  const Status status = Prefill(added, rows, out, progress, npu);
  if (!status.ok()) ++report.unfinished;
  npu->EndPrefill(status.ok() ? out.size() / engine.model.config().vocab_size : 0);
  return status;
}

Status Session::Impl::Prefill(std::span<const int32_t> added, LogitRows rows, std::span<float> out,
                              const ProgressFn& progress, NpuLayers* npu) {
  const size_t n_total = tokens.size() + added.size();
  // LongRoPE turns every position by other angles once a sequence is longer than the original context: what was cached
  // with the other angles is computed again, so that the result depends on the tokens alone and not on how they came.
  const ModelConfig& config = engine.model.config();
  const size_t reached = config.rope_long_by_context ? kv.capacity() : n_total;
  const bool needs_long = config.rope_original_context > 0 && reached > config.rope_original_context;
  if (needs_long != cached_long) n_cached = 0;
  cached_long = needs_long;
  n_cached = std::min(n_cached, tokens.size());
  if (n_cached < tokens.size()) {
    NM_TRY(RunSpan(std::span(tokens).subspan(n_cached), n_cached, LogitRows::kNone, {}, progress, n_total, npu));
  }
  return RunSpan(added, tokens.size(), rows, out, progress, n_total, npu);
}

Status Session::Append(std::span<const int32_t> tokens, const ProgressFn& progress) {
  NM_TRY(impl_->Advance(tokens, LogitRows::kLast, impl_->logits, progress));
  impl_->tokens.insert(impl_->tokens.end(), tokens.begin(), tokens.end());
  return Ok{};
}

Status Session::AppendWithLogits(std::span<const int32_t> tokens, std::span<float> out) {
  const size_t vocab_size = impl_->logits.size();
  if (out.empty() || out.size() % vocab_size != 0 || out.size() / vocab_size > tokens.size()) {
    return MakeError(Code::kInvalidArgument, "session: logits buffer has {} values, wanted 1 to {} x {}", out.size(),
                     tokens.size(), vocab_size);
  }
  NM_TRY(impl_->Advance(tokens, LogitRows::kMany, out, {}));
  std::copy_n(out.end() - static_cast<ptrdiff_t>(vocab_size), vocab_size, impl_->logits.begin());
  impl_->tokens.insert(impl_->tokens.end(), tokens.begin(), tokens.end());
  return Ok{};
}

std::span<const float> Session::logits() const { return impl_->logits; }
std::span<const int32_t> Session::tokens() const { return impl_->tokens; }

void Session::Truncate(size_t n_tokens) {
  NM_CHECK(n_tokens <= impl_->tokens.size());
  impl_->tokens.resize(n_tokens);
  impl_->n_cached = std::min(impl_->n_cached, n_tokens);
}

void Session::KeepExperts(bool keep) {
  impl_->choices.reset();
  if (keep && impl_->engine.model.config().n_experts > 0) impl_->choices.emplace(impl_->engine.model.config());
}

std::span<const uint32_t> Session::experts() const {
  return impl_->choices ? impl_->choices->experts() : std::span<const uint32_t>();
}

MemoryUse Session::memory() const {
  MemoryUse use;
  use.program = impl_->engine.program_bytes;
  use.mapped_weights = impl_->engine.model.mapped_bytes();
  use.converted_weights = impl_->engine.model.converted_bytes();
  use.kv_cache = impl_->kv.reserved_bytes();
  use.scratch = impl_->engine.forward.scratch_bytes() + impl_->logits.size() * sizeof(float) +
                impl_->tokens.capacity() * sizeof(int32_t);
  use.npu = impl_->engine.npu ? impl_->engine.npu->host_bytes() : 0;
  use.peak_resident = PeakResidentBytes();
  return use;
}

const RunReport& Session::report() const { return impl_->report; }

std::string Session::TraceJson() const {
  const NpuLayers* const npu = impl_->engine.npu.get();
  return impl_->trace.ToJson(npu == nullptr ? std::string("real time") : fmt::format("simulated {}", npu->spec().name));
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

}  // namespace npumoe
