// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/generate.h"

#include <fmt/core.h>

#include <algorithm>

#include "apps/npumoe/console.h"
#include "apps/npumoe/progress.h"
#include "apps/npumoe/text.h"

namespace npumoe {
namespace {

// The bytes a token adds to the text. The first one after a SentencePiece prompt depends on what stands before it.
std::string FirstPiece(const Engine& engine, const Session& session, int32_t token, const GenerateOptions& options) {
  std::vector<int32_t> ids;
  std::string before;
  if (options.continues_text) {
    ids.assign(session.tokens().begin(), session.tokens().end());
    before = engine.Detokenize(ids, options.show_special);
  }
  ids.push_back(token);
  const std::string after = engine.Detokenize(ids, options.show_special);
  return after.starts_with(before) ? after.substr(before.size()) : engine.TokenBytes(token, options.show_special);
}

// Draws until something stops it. `out` is filled as far as it got, also on failure.
Status Decode(const Engine& engine, Session& session, Sampler& sampler, const GenerateOptions& options,
              const EmitFn& emit, double start, Generation& out) {
  Utf8Gate gate;
  const auto show = [&](const std::string& bytes) -> Status {
    out.text += bytes;
    return bytes.empty() ? Status(Ok{}) : emit(bytes);
  };
  out.reason = StopReason::kLength;
  while (options.max_tokens < 0 || out.tokens.size() < static_cast<uint64_t>(options.max_tokens)) {
    if (Interrupted()) {
      out.reason = StopReason::kInterrupted;
      break;
    }
    const auto token = sampler.Sample(session.logits(), session.tokens());
    if (!token) return token.error();
    if (out.tokens.empty()) out.first_token_seconds = Now() - start;
    out.tokens.push_back(*token);
    const bool is_end = engine.IsEndOfGeneration(*token);
    if (!is_end || options.show_special) {
      const std::string piece = out.tokens.size() == 1 ? FirstPiece(engine, session, *token, options)
                                                       : engine.TokenBytes(*token, options.show_special);
      const Status shown = show(gate.Push(piece));
      if (!shown) return shown.error();
    }
    if (is_end) {
      out.reason = StopReason::kEndToken;
      break;
    }
    if (static_cast<int64_t>(out.tokens.size()) == options.max_tokens) break;
    if (session.tokens().size() >= engine.options().context_tokens) {
      out.reason = StopReason::kContext;
      break;
    }
    const double before = Now();
    const Status appended = session.Append(std::span(&*token, 1));
    if (!appended) return appended.error();
    out.decode_seconds += Now() - before;
    ++out.decode_tokens;
  }
  return show(gate.Finish());
}

double PerSecond(size_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0.0; }

}  // namespace

std::string_view ToString(StopReason reason) {
  switch (reason) {
    case StopReason::kEndToken:
      return "stop";
    case StopReason::kLength:
      return "length";
    case StopReason::kContext:
      return "context";
    case StopReason::kInterrupted:
      return "interrupted";
  }
  return "";
}

Result<Generation> Generate(const Engine& engine, Session& session, Sampler& sampler, std::span<const int32_t> prompt,
                            const GenerateOptions& options, const EmitFn& emit) {
  Generation out;
  const double start = Now();
  {
    Progress progress("prompt");
    // Tokens that stood in the session already are in the counts, and not in what is shown.
    const size_t kept = session.tokens().size();
    const Status appended = session.Append(prompt, [&](size_t done_tokens, size_t total_tokens) {
      progress.Show(std::max(done_tokens, kept) - kept, total_tokens - kept);
      return !Interrupted();
    });
    if (!appended && appended.error().code == Code::kCancelled) {
      out.reason = StopReason::kInterrupted;
      return out;
    }
    if (!appended) return appended.error();
  }
  out.prompt_tokens = prompt.size();
  out.prompt_seconds = Now() - start;
  const Status decoded = Decode(engine, session, sampler, options, emit, start, out);
  if (!decoded) return decoded.error();
  return out;
}

std::string FormatStats(const Generation& generation, const MemoryUse& memory, uint64_t seed) {
  const auto speed = [](const char* name, size_t tokens, double seconds) {
    return fmt::format("{:<12} {:>8} tokens {:>9.3f} s {:>10.2f} t/s\n", name, tokens, seconds,
                       PerSecond(tokens, seconds));
  };
  const auto bytes = [](const char* name, uint64_t size) {
    return fmt::format("{:<26} {:>12}\n", name, FormatBytes(size));
  };
  std::string text = speed("prompt", generation.prompt_tokens, generation.prompt_seconds) +
                     speed("generation", generation.decode_tokens, generation.decode_seconds);
  if (!generation.tokens.empty())
    text += fmt::format("first token after {:>16.3f} s\n", generation.first_token_seconds);
  text += fmt::format("stopped by {}, seed {}\n", ToString(generation.reason), seed);
  return text + bytes("program and vocabulary", memory.program) + bytes("mapped weights", memory.mapped_weights) +
         bytes("converted weights", memory.converted_weights) + bytes("KV cache, reserved", memory.kv_cache) +
         bytes("scratch", memory.scratch) + (memory.npu > 0 ? bytes("simulated NPU", memory.npu) : std::string()) +
         bytes("= peak bound", memory.Bound()) + bytes("peak resident (process)", memory.peak_resident);
}

void PrintWarnings(const ModelInfo& info) {
  for (const std::string& warning : info.warnings) Note("warning: " + warning);
}

}  // namespace npumoe
