// SPDX-License-Identifier: Apache-2.0
#include "format/chat_format.h"

#include <array>
#include <utility>

#include "base/check.h"

namespace npumoe {
namespace {

enum Role : size_t { kSystem, kUser, kAssistant, kRoleCount };
constexpr std::array<std::string_view, kRoleCount> kRoleNames{"system", "user", "assistant"};

using Controls = std::array<std::string_view, 5>;
using ByRole = std::array<std::string_view, kRoleCount>;

// Everything a family's template does, as data. Literals are cut into pieces at `controls`: these become markup, the
// rest stays text, so that a tokenizer sees the same boundaries as in the whole prompt (it splits at control tokens).
struct ChatFormat {
  std::string_view name = {};
  Controls controls = {};
  std::string_view start = {};              // before the first turn
  ByRole open = {}, close = {};             // around a turn's content
  std::string_view generation = {};         // opens the assistant's turn
  std::string_view finish = {};             // after the last turn when nothing is to be generated
  std::string_view first_system_open = {};  // instead of open[kSystem] for a leading one; empty: the same
  const char* default_system = nullptr;     // content of the leading system turn when there is none
  bool system_in_first_user = false;  // open/close[kSystem] stand inside the user's turn; user and assistant alternate
  bool trims = false;                 // white space around contents is dropped
  bool skips_empty_system = false;
  bool strips_thoughts = false;  // see AppendThinkingAssistant
};

constexpr Controls kChatmlControls{"<|im_start|>", "<|im_end|>", "<think>", "</think>"};
constexpr ByRole kChatmlOpen{"<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n"};
constexpr ByRole kChatmlClose{"<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n"};
constexpr Controls kLlama3Controls{"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
constexpr ByRole kLlama3Open{"<|start_header_id|>system<|end_header_id|>\n\n",
                             "<|start_header_id|>user<|end_header_id|>\n\n",
                             "<|start_header_id|>assistant<|end_header_id|>\n\n"};
constexpr ByRole kLlama3Close{"<|eot_id|>", "<|eot_id|>", "<|eot_id|>"};
constexpr ByRole kPlainOpen{"<|system|>\n", "<|user|>\n", "<|assistant|>\n"};

// Sources: the Jinja templates in the tokenizer_config.json of the models named.
constexpr ChatFormat kFormats[] = {
    // Qwen3-Coder, Qwen3-*-Instruct-2507
    {.name = "chatml",
     .controls = kChatmlControls,
     .open = kChatmlOpen,
     .close = kChatmlClose,
     .generation = "<|im_start|>assistant\n"},
    // Qwen1.5-MoE-A2.7B-Chat, Qwen2-57B-A14B-Instruct
    {.name = "qwen2",
     .controls = kChatmlControls,
     .open = kChatmlOpen,
     .close = kChatmlClose,
     .generation = "<|im_start|>assistant\n",
     .default_system = "You are a helpful assistant."},
    // Qwen2.5-7B-Instruct
    {.name = "qwen2.5",
     .controls = kChatmlControls,
     .open = kChatmlOpen,
     .close = kChatmlClose,
     .generation = "<|im_start|>assistant\n",
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    // Qwen3-30B-A3B, Qwen3-0.6B with enable_thinking not given
    {.name = "qwen3",
     .controls = kChatmlControls,
     .open = kChatmlOpen,
     .close = kChatmlClose,
     .generation = "<|im_start|>assistant\n",
     .strips_thoughts = true},
    // the same with enable_thinking = false
    {.name = "qwen3-no-think",
     .controls = kChatmlControls,
     .open = kChatmlOpen,
     .close = kChatmlClose,
     .generation = "<|im_start|>assistant\n<think>\n\n</think>\n\n",
     .strips_thoughts = true},
    // Qwen3-30B-A3B-Thinking-2507
    {.name = "qwen3-thinking",
     .controls = kChatmlControls,
     .open = kChatmlOpen,
     .close = kChatmlClose,
     .generation = "<|im_start|>assistant\n<think>\n",
     .strips_thoughts = true},
    // Phi-3.5-MoE-instruct, Phi-3.5-mini-instruct. The line ends belong to the markup: these tokens swallow the white
    // space after them (rstrip) in the vocabularies that say so.
    {.name = "phi3",
     .controls = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n", "<|end|>\n", "<|endoftext|>"},
     .open = kPlainOpen,
     .close = {"<|end|>\n", "<|end|>\n", "<|end|>\n"},
     .generation = "<|assistant|>\n",
     .finish = "<|endoftext|>",
     .skips_empty_system = true},
    // Mixtral-8x7B-Instruct-v0.1, template of September 2024
    {.name = "mixtral",
     .controls = {"<s>", "</s>"},
     .start = "<s>",
     .open = {"", " [INST] ", " "},
     .close = {"\n\n", " [/INST]", "</s>"},
     .system_in_first_user = true},
    // the same model's first template, still in many GGUF files; the system text is placed as in the later one
    {.name = "mistral",
     .controls = {"<s>", "</s>"},
     .start = "<s>",
     .open = {"", "[INST] ", ""},
     .close = {"\n\n", " [/INST]", "</s>"},
     .system_in_first_user = true},
    // Llama-2-7b-chat-hf
    {.name = "llama2",
     .controls = {"<s>", "</s>"},
     .open = {"<<SYS>>\n", "<s>[INST] ", " "},
     .close = {"\n<</SYS>>\n\n", " [/INST]", " </s>"},
     .system_in_first_user = true,
     .trims = true},
    // Meta-Llama-3-8B-Instruct
    {.name = "llama3",
     .controls = kLlama3Controls,
     .start = "<|begin_of_text|>",
     .open = kLlama3Open,
     .close = kLlama3Close,
     .generation = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .trims = true},
    // Llama-3.1-8B-Instruct, Llama-3.2-3B-Instruct; the date is the template's own default, so that a prompt does not
    // change from one day to the next
    {.name = "llama3.1",
     .controls = kLlama3Controls,
     .start = "<|begin_of_text|>",
     .open = kLlama3Open,
     .close = kLlama3Close,
     .generation = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .first_system_open = "<|start_header_id|>system<|end_header_id|>\n\n"
                          "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
     .default_system = "",
     .trims = true},
    // OLMoE-1B-7B-0924-Instruct; its role marks are ordinary text
    {.name = "olmoe",
     .controls = {"<|endoftext|>"},
     .start = "<|endoftext|>",
     .open = kPlainOpen,
     .close = {"\n", "\n", "<|endoftext|>\n"},
     .generation = "<|assistant|>\n"},
    // zephyr-7b-beta and the many trained with its template; role marks as in olmoe
    {.name = "zephyr",
     .controls = {"</s>"},
     .open = kPlainOpen,
     .close = {"</s>\n", "</s>\n", "</s>\n"},
     .generation = "<|assistant|>\n"},
};

const ChatFormat* FindFormat(std::string_view name) {
  for (const ChatFormat& format : kFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

std::string_view Trim(std::string_view text, std::string_view what, bool left = true, bool right = true) {
  const size_t first = left ? text.find_first_not_of(what) : 0;
  if (first == std::string_view::npos || text.empty()) return {};
  const size_t last = right ? text.find_last_not_of(what) : text.size() - 1;
  if (last == std::string_view::npos) return {};
  return text.substr(first, last + 1 - first);
}
constexpr std::string_view kWhiteSpace = " \t\n\r\f\v";

// Joins neighbours of one kind, so that text is tokenised as a whole.
class PieceList {
 public:
  explicit PieceList(const ChatFormat& format) : format_(format) {}

  void Text(std::string_view text) { Append(text, false); }

  // A literal of the format, cut at its control tokens.
  void Literal(std::string_view literal) {
    while (!literal.empty()) {
      size_t at = literal.size();
      std::string_view found;
      for (const std::string_view control : format_.controls) {
        const size_t position = control.empty() ? std::string_view::npos : literal.find(control);
        if (position < at) {
          at = position;
          found = control;
        }
      }
      Append(literal.substr(0, at), false);
      Append(found, true);
      literal.remove_prefix(at + found.size());
    }
  }

  std::vector<ChatPiece> Take() { return std::move(pieces_); }

 private:
  void Append(std::string_view text, bool is_markup) {
    if (text.empty()) return;
    if (pieces_.empty() || pieces_.back().is_markup != is_markup) pieces_.push_back({{}, is_markup});
    pieces_.back().text += text;
  }

  const ChatFormat& format_;
  std::vector<ChatPiece> pieces_;
};

struct Turn {
  Role role;
  std::string_view content;
};

Result<std::vector<Turn>> ReadRoles(std::span<const ChatMessage> messages) {
  std::vector<Turn> turns;
  for (size_t i = 0; i < messages.size(); ++i) {
    size_t role = 0;
    while (role < kRoleCount && kRoleNames[role] != messages[i].role) ++role;
    if (role == kRoleCount) {
      return MakeError(Code::kInvalidArgument, "chat message {}: unknown role '{}', wanted system, user or assistant",
                       i, messages[i].role);
    }
    turns.push_back({static_cast<Role>(role), messages[i].content});
  }
  return turns;
}

// For formats without a system turn: an optional system message, then user and assistant by turns.
Status CheckAlternation(const ChatFormat& format, std::span<const Turn> turns, bool add_generation_prompt) {
  const size_t first = turns[0].role == kSystem ? 1 : 0;
  if (first == turns.size()) {
    return MakeError(Code::kInvalidArgument, "chat format {}: a system message needs a user message after it",
                     format.name);
  }
  for (size_t i = first; i < turns.size(); ++i) {
    const Role wanted = (i - first) % 2 == 0 ? kUser : kAssistant;
    if (turns[i].role != wanted) {
      return MakeError(Code::kInvalidArgument,
                       "chat format {}: message {} has role {}, wanted {} (user and assistant alternate)", format.name,
                       i, kRoleNames[turns[i].role], kRoleNames[wanted]);
    }
  }
  if (add_generation_prompt && turns.back().role == kAssistant) {
    return MakeError(Code::kInvalidArgument,
                     "chat format {}: the last message is the assistant's, a reply needs a user's", format.name);
  }
  return Ok{};
}

void AppendAlternating(const ChatFormat& format, std::span<const Turn> turns, PieceList& pieces) {
  std::string first_user;
  if (turns[0].role == kSystem) {
    first_user += format.open[kSystem];
    first_user += turns[0].content;
    first_user += format.close[kSystem];
    turns = turns.subspan(1);
  }
  for (const Turn& turn : turns) {
    std::string content = std::exchange(first_user, {});
    content += turn.content;
    pieces.Literal(format.open[turn.role]);
    pieces.Text(format.trims ? Trim(content, kWhiteSpace) : content);
    pieces.Literal(format.close[turn.role]);
  }
}

// Qwen3: the thoughts in earlier answers are dropped; an answer after the last question keeps its thoughts, and gets an
// empty block if it has none and ends the conversation.
void AppendThinkingAssistant(const Turn& turn, bool after_last_user, bool is_last, PieceList& pieces) {
  std::string_view content = turn.content, thoughts;
  if (const size_t end = content.find("</think>"); end != std::string_view::npos) {
    thoughts = Trim(content.substr(0, end), "\n", false, true);
    if (const size_t begin = thoughts.rfind("<think>"); begin != std::string_view::npos) {
      thoughts.remove_prefix(begin + std::string_view("<think>").size());
    }
    thoughts = Trim(thoughts, "\n");
    content = Trim(content.substr(content.rfind("</think>") + std::string_view("</think>").size()), "\n", true, false);
  }
  if (after_last_user && (is_last || !thoughts.empty())) {
    pieces.Literal("<think>");
    pieces.Text("\n");
    pieces.Text(thoughts);
    pieces.Text("\n");
    pieces.Literal("</think>");
    pieces.Text("\n\n");
    content = Trim(content, "\n", true, false);
  }
  pieces.Text(content);
}

void AppendTurns(const ChatFormat& format, std::span<const Turn> turns, PieceList& pieces) {
  size_t last_user = turns.size() - 1;
  for (size_t i = 0; i < turns.size(); ++i) {
    if (turns[i].role == kUser) last_user = i;
  }
  const std::string_view first_open =
      format.first_system_open.empty() ? format.open[kSystem] : format.first_system_open;
  if (turns[0].role != kSystem && format.default_system != nullptr) {
    pieces.Literal(first_open);
    pieces.Text(format.default_system);
    pieces.Literal(format.close[kSystem]);
  }
  for (size_t i = 0; i < turns.size(); ++i) {
    const Turn& turn = turns[i];
    if (turn.role == kSystem && turn.content.empty() && format.skips_empty_system) continue;
    pieces.Literal(i == 0 && turn.role == kSystem ? first_open : format.open[turn.role]);
    if (turn.role == kAssistant && format.strips_thoughts) {
      AppendThinkingAssistant(turn, i > last_user, i + 1 == turns.size(), pieces);
    } else {
      pieces.Text(format.trims ? Trim(turn.content, kWhiteSpace) : turn.content);
    }
    pieces.Literal(format.close[turn.role]);
  }
}

}  // namespace

std::vector<std::string_view> ChatFormatNames() {
  std::vector<std::string_view> names;
  for (const ChatFormat& format : kFormats) names.push_back(format.name);
  return names;
}

std::optional<std::string_view> DetectChatFormat(std::string_view chat_template) {
  const auto has = [chat_template](std::string_view marker) {
    return chat_template.find(marker) != std::string_view::npos;
  };
  if (has("<|im_start|>")) {
    // Template sources write the line end as an escape; some tools store it as a real one.
    if (has("assistant\\n<think>\\n'") || has("assistant\n<think>\n'")) return "qwen3-thinking";
    if (has("</think>")) return "qwen3";
    if (has("You are Qwen, created by Alibaba Cloud")) return "qwen2.5";
    return has("You are a helpful assistant") ? "qwen2" : "chatml";
  }
  if (has("<|start_header_id|>")) return has("Cutting Knowledge Date") ? "llama3.1" : "llama3";
  if (has("[INST]")) {
    if (has("[AVAILABLE_TOOLS]") || has("[TOOL_CALLS]")) return std::nullopt;  // control tokens of later Mistral models
    if (has("<<SYS>>")) return "llama2";
    return has("' [INST] '") || has("\" [INST] \"") ? "mixtral" : "mistral";
  }
  if (has("<|user|>") && has("<|assistant|>")) {
    if (has("<|end|>")) return "phi3";
    // Zephyr ends every turn with the EOS token, OLMoE only the assistant's; OLMoE starts with it (or names it BOS).
    const std::string_view user = chat_template.substr(chat_template.find("<|user|>"));
    if (user.substr(0, user.find("}}")).find("eos_token") != std::string_view::npos) return "zephyr";
    if (chat_template.starts_with("{{ eos_token }}") || chat_template.starts_with("{{ bos_token }}")) return "olmoe";
  }
  return std::nullopt;
}

Result<std::vector<ChatPiece>> RenderChat(std::string_view format_name, std::span<const ChatMessage> messages,
                                          bool add_generation_prompt) {
  const ChatFormat* format = FindFormat(format_name);
  if (format == nullptr) {
    std::string known;
    for (const ChatFormat& f : kFormats) (known += known.empty() ? "" : ", ") += f.name;
    return MakeError(Code::kNotFound, "chat format: unknown name '{}', wanted one of {}", format_name, known);
  }
  if (messages.empty()) return MakeError(Code::kInvalidArgument, "chat format {}: no messages", format->name);
  NM_TRY_VAR(const std::vector<Turn> turns, ReadRoles(messages));
  PieceList pieces(*format);
  pieces.Literal(format->start);
  if (format->system_in_first_user) {
    NM_TRY(CheckAlternation(*format, turns, add_generation_prompt));
    AppendAlternating(*format, turns, pieces);
  } else {
    AppendTurns(*format, turns, pieces);
  }
  pieces.Literal(add_generation_prompt ? format->generation : format->finish);
  return pieces.Take();
}

}  // namespace npumoe
