// SPDX-License-Identifier: Apache-2.0
// Built-in chat formats of the supported families: messages to the prompt text the model was trained on.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// One piece of a rendered prompt; joined, they are what the model's template renders, BOS included where it writes one.
// Text that came from a message is never markup. Pieces are cut at control tokens only, where a tokenizer cuts too.
struct ChatPiece {
  std::string text;
  bool is_markup = false;  // tokenise with parse_special
};

// "chatml", "qwen2", "qwen2.5", "qwen3" (thinking left to the model), "qwen3-no-think", "qwen3-thinking", "phi3"
// (Phi-3.5-MoE), "mixtral", "mistral" (Mixtral's first template), "llama2", "llama3", "llama3.1", "olmoe", "zephyr".
std::vector<std::string_view> ChatFormatNames();

// The format whose markers occur in a Jinja chat template, or nullopt if none is recognised.
std::optional<std::string_view> DetectChatFormat(std::string_view chat_template);

// Renders messages and, with `add_generation_prompt`, the opening of the assistant's turn. Fails on an unknown format,
// an unknown role, or an order the format cannot express.
Result<std::vector<ChatPiece>> RenderChat(std::string_view format, std::span<const ChatMessage> messages,
                                          bool add_generation_prompt);

}  // namespace npumoe
