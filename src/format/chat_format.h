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

// One piece of a rendered prompt. Text that came from a message is never parsed for control tokens.
struct ChatPiece {
  std::string text;
  bool is_markup = false;  // tokenise with parse_special
};

// "chatml" (Qwen2, Qwen3), "phi3" (Phi-3.5-MoE), "mixtral", "llama3", "olmoe", ...
std::vector<std::string_view> ChatFormatNames();

// The format whose markers occur in a Jinja chat template, or nullopt if none is recognised.
std::optional<std::string_view> DetectChatFormat(std::string_view chat_template);

// Renders messages and, with `add_generation_prompt`, the opening of the assistant's turn. Fails on an unknown format,
// an unknown role, or an order the format cannot express.
Result<std::vector<ChatPiece>> RenderChat(std::string_view format, std::span<const ChatMessage> messages,
                                          bool add_generation_prompt);

}  // namespace npumoe
