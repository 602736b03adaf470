// SPDX-License-Identifier: Apache-2.0
// One generation, as `run` and `chat` share it: read the prompt, draw tokens, hand out their bytes, take the times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/engine.h"

namespace npumoe {

enum class StopReason { kEndToken, kLength, kContext, kInterrupted };
std::string_view ToString(StopReason reason);  // "stop", "length", "context", "interrupted"

struct GenerateOptions {
  int64_t max_tokens = -1;    // < 0: until an end token or a full context
  bool show_special = false;  // control tokens become text
  // The answer of a chat starts fresh; a continuation keeps the space between prompt and first word.
  bool continues_text = true;
};

struct Generation {
  std::vector<int32_t> tokens;  // drawn tokens, the end token included
  std::string text;             // their bytes, as handed to `emit`
  StopReason reason = StopReason::kLength;
  size_t prompt_tokens = 0;  // evaluated now; a reused prefix is not counted
  size_t decode_tokens = 0;  // evaluated one at a time after the prompt
  double prompt_seconds = 0, decode_seconds = 0;
  double first_token_seconds = 0;  // from the start of the prompt to the first drawn token; 0 if none was drawn
};

// Receives bytes as they come, never half a UTF-8 character; an error ends the generation.
using EmitFn = std::function<Status(std::string_view bytes)>;

// Appends `prompt` to the session and draws tokens after it. An interrupt is no error: what was drawn is returned. A
// prompt that takes longer than a second shows its progress on stderr.
Result<Generation> Generate(const Engine& engine, Session& session, Sampler& sampler, std::span<const int32_t> prompt,
                            const GenerateOptions& options, const EmitFn& emit);

// Several lines for stderr: speeds, time to the first token, and the memory table.
std::string FormatStats(const Generation& generation, const MemoryUse& memory, uint64_t seed);

// "npumoe: warning: ..." for each of the model's warnings.
void PrintWarnings(const ModelInfo& info);

}  // namespace npumoe
