// SPDX-License-Identifier: Apache-2.0
// `npumoe chat`: a conversation on a terminal, or one message per line from a pipe.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <optional>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/generate.h"
#include "apps/npumoe/npu_flags.h"
#include "apps/npumoe/text.h"
#include "npumoe/engine.h"

namespace npumoe {
namespace {

constexpr size_t kMaxMessageBytes = size_t{4} << 20;  // above the longest context in bytes that a person pastes
constexpr std::string_view kFence = "\"\"\"";

constexpr std::string_view kHelp =
    "/help             this list\n"
    "/bye /exit        leave (so does Ctrl-D)\n"
    "/clear            forget the conversation, keep the system message\n"
    "/show             model, settings and how full the context is\n"
    "/set NAME VALUE   temp, top-k, top-p, min-p, repeat-penalty, repeat-last-n, seed, n-predict\n"
    "/set system TEXT  another system message; forgets the conversation\n"
    "\"\"\"               begins and ends a message of several lines\n"
    "Ctrl-C            stops the answer, not the program\n";

struct ChatFlags {
  EngineFlags engine;
  SamplerFlags sampler;
  NpuFlags npu;
  std::string first_message, system_prompt, chat_template;
  int64_t max_tokens = -1;
  bool stats = false, show_special = false, single_turn = false;
  CLI::Option* first_option = nullptr;

  void AddTo(CLI::App& app) {
    engine.AddTo(app);
    const std::string group = "Conversation";
    first_option = app.add_option("-p,--prompt", first_message, "first message")->take_last()->group(group);
    app.add_option("--system-prompt", system_prompt, "-sys: system message")->take_last()->group(group);
    auto* format = app.add_option("--chat-template", chat_template, "built-in chat format instead of the model's own")
                       ->take_last()
                       ->check(KnownChatFormat())
                       ->group(group);
    BindEnvironment(format, "CHAT_TEMPLATE");
    app.add_flag("--single-turn", single_turn, "-st: end after the first answer")->group(group);
    auto* max_option =
        app.add_option("-n,--n-predict,--max-tokens", max_tokens, "longest answer in tokens; -1 = no limit")
            ->take_last()
            ->check(WholeIn(-2, uint64_t{1} << 40))
            ->group(group);
    BindEnvironment(max_option, "N_PREDICT");
    app.add_flag("--special", show_special, "print control tokens too")->group(group);
    app.add_flag("--stats", stats, "print speeds and memory on stderr after each answer")->group(group);
    sampler.AddTo(app);
    npu.AddTo(app);
  }
};

// Tokens that two sequences share at their start.
size_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && std::string_view(" \t\r").find(text.front()) != std::string_view::npos) text.remove_prefix(1);
  while (!text.empty() && std::string_view(" \t\r").find(text.back()) != std::string_view::npos) text.remove_suffix(1);
  return text;
}

// First word of `text`; the rest, trimmed, stays in `text`.
std::string_view TakeWord(std::string_view& text) {
  const size_t end = std::min(text.find_first_of(" \t"), text.size());
  const std::string_view word = text.substr(0, end);
  text = Trim(text.substr(end));
  return word;
}

// One conversation. Errors of a turn are told and the conversation goes on; only a broken stdout ends it.
class Conversation {
 public:
  Conversation(const Engine& engine, Session session, const ChatFlags& flags, Sampler sampler, SamplerParams params)
      : engine_(engine),
        session_(std::move(session)),
        format_(flags.chat_template),
        sampler_(std::move(sampler)),
        params_(params),
        max_tokens_(flags.max_tokens),
        stats_(flags.stats),
        show_special_(flags.show_special) {
    SetSystem(flags.system_prompt);
  }

  // Answers `text`. kCancelled: stdout is gone.
  Status Turn(std::string text);
  // Obeys a line that starts with a slash. False: the user leaves.
  Result<bool> Command(std::string_view line);
  bool failed() const { return failed_; }
  bool interrupted() const { return interrupted_; }  // the last answer, by Ctrl-C
  const RunReport& report() const { return session_.report(); }

 private:
  void SetSystem(std::string text) {
    messages_.clear();
    if (!text.empty()) messages_.push_back({"system", std::move(text)});
  }
  void Complain(const Error& error) {
    Note(error.message);
    failed_ = true;
  }
  Status Set(std::string_view arguments);
  std::string Show() const;

  const Engine& engine_;
  Session session_;
  const std::string format_;
  Sampler sampler_;
  SamplerParams params_;
  int64_t max_tokens_;
  const bool stats_, show_special_;
  std::vector<Message> messages_;
  bool failed_ = false, interrupted_ = false;
};

Status Conversation::Turn(std::string text) {
  interrupted_ = false;
  messages_.push_back({"user", std::move(text)});
  const auto tokens = engine_.EncodeChat(messages_, /*add_generation_prompt=*/true, format_);
  if (!tokens) {
    messages_.pop_back();
    Complain(tokens.error());
    return Ok{};
  }
  // What the session already holds is not computed again. Its last token is, so that there are logits to draw from.
  const size_t common = std::min(CommonPrefix(*tokens, session_.tokens()), tokens->size() - 1);
  session_.Truncate(common);
  const GenerateOptions options{.max_tokens = max_tokens_, .show_special = show_special_, .continues_text = false};
  ClearInterrupt();
  const auto answer = Generate(engine_, session_, sampler_, std::span(*tokens).subspan(common), options, WriteOut);
  ClearInterrupt();
  if (!answer) {
    messages_.pop_back();
    if (answer.error().message.starts_with("stdout: ")) return answer.error();
    Complain(answer.error());
    return Ok{};
  }
  const Status ended = WriteOut("\n");
  if (!ended) return ended;
  interrupted_ = answer->reason == StopReason::kInterrupted;
  if (interrupted_ && answer->text.empty()) {
    messages_.pop_back();  // nothing was said: as if the question had not been asked
  } else {
    messages_.push_back({"assistant", answer->text});
  }
  if (answer->reason == StopReason::kContext) {
    Note(
        fmt::format("stopped: the context of {} tokens is full; /clear starts anew", engine_.options().context_tokens));
  }
  if (stats_) WriteErr(FormatStats(*answer, session_.memory(), params_.seed));
  return Ok{};
}

// std::from_chars for float is missing from libc++, so numbers go through one double parser.
std::optional<double> ToNumber(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  if (copy.empty() || *end != '\0') return std::nullopt;
  return value;
}

Status Conversation::Set(std::string_view arguments) {
  std::string_view name = TakeWord(arguments);
  if (name == "parameter") name = TakeWord(arguments);  // as Ollama spells it
  if (name == "system") {
    if (arguments.size() >= 2 && arguments.front() == '"' && arguments.back() == '"') {
      arguments = arguments.substr(1, arguments.size() - 2);
    }
    SetSystem(std::string(arguments));
    return Ok{};
  }
  const auto number = ToNumber(arguments);
  SamplerParams params = params_;
  const auto whole = [&](double low, double high) {
    return number && *number >= low && *number <= high && *number == static_cast<double>(static_cast<int64_t>(*number));
  };
  const double max32 = 4294967295.0;
  const Error wrong{Code::kInvalidArgument,
                    fmt::format("/set {}: wants a number it can use, got '{}'", name, arguments)};
  if (!number) return wrong;
  if (name == "n-predict" || name == "num_predict") {
    if (!whole(-2, 1e12)) return wrong;
    max_tokens_ = static_cast<int64_t>(*number);
    return Ok{};
  }
  if (name == "temp" || name == "temperature") {
    params.temperature = static_cast<float>(*number);
  } else if (name == "top-p" || name == "top_p") {
    params.top_p = static_cast<float>(*number);
  } else if (name == "min-p" || name == "min_p") {
    params.min_p = static_cast<float>(*number);
  } else if (name == "repeat-penalty" || name == "repeat_penalty") {
    params.repeat_penalty = static_cast<float>(*number);
  } else if (!whole(0, max32)) {
    return wrong;
  } else if (name == "top-k" || name == "top_k") {
    params.top_k = static_cast<uint32_t>(*number);
  } else if (name == "repeat-last-n" || name == "repeat_last_n") {
    params.repeat_last_n = static_cast<uint32_t>(*number);
  } else if (name == "seed") {
    params.seed = static_cast<uint64_t>(*number);
  } else {
    return Error{Code::kInvalidArgument, fmt::format("/set {}: unknown setting, /help lists them", name)};
  }
  auto sampler = Sampler::Make(params);
  if (!sampler) return Error{Code::kInvalidArgument, "/set: " + sampler.error().message};
  sampler_ = std::move(*sampler);
  params_ = params;
  return Ok{};
}

std::string Conversation::Show() const {
  const ModelInfo& info = engine_.info();
  const std::string system = !messages_.empty() && messages_[0].role == "system" ? messages_[0].content : "";
  return fmt::format(
      "model    {} ({}, {}, {})\nformat   {}\ncontext  {} of {} tokens used\n"
      "settings temp {} top-k {} top-p {} min-p {} repeat-penalty {} repeat-last-n {} seed {} n-predict {}\nsystem   "
      "{}\n",
      OneLine(info.name), OneLine(info.family), OneLine(info.type), FormatBytes(info.size_bytes),
      format_.empty() ? engine_.chat_format() : format_, session_.tokens().size(), engine_.options().context_tokens,
      params_.temperature, params_.top_k, params_.top_p, params_.min_p, params_.repeat_penalty, params_.repeat_last_n,
      params_.seed, max_tokens_, system.empty() ? "(none)" : OneLine(system));
}

Result<bool> Conversation::Command(std::string_view line) {
  const std::string_view word = TakeWord(line);
  std::string text;
  if (word == "/bye" || word == "/exit" || word == "/quit") return false;
  if (word == "/help" || word == "/?") {
    text = kHelp;
  } else if (word == "/show") {
    text = Show();
  } else if (word == "/clear") {
    SetSystem(!messages_.empty() && messages_[0].role == "system" ? messages_[0].content : "");
    session_.Truncate(0);
  } else if (word == "/set") {
    if (const Status set = Set(line); !set) Complain(set.error());
  } else {
    Complain({Code::kInvalidArgument, fmt::format("unknown command '{}', /help lists them", word)});
  }
  const Status written = WriteOut(text);
  if (!written) return written.error();
  return true;
}

enum class Input { kMessage, kEnd, kNothing, kInterrupted };

// Reads one message, over several lines between fences. kNothing: an empty line, or a message too long.
Input ReadMessage(LineReader& reader, bool decorated, std::string& message) {
  const auto prompt = [&](std::string_view text) {
    if (decorated) (void)WriteOut(text);
  };
  message.clear();
  prompt("> ");
  bool fenced = false;
  std::string line;
  while (true) {
    switch (reader.Read(line, kMaxMessageBytes)) {
      case LineReader::Outcome::kInterrupted:
        ClearInterrupt();
        prompt("\n(Ctrl-D or /bye leaves)\n");
        return Input::kInterrupted;
      case LineReader::Outcome::kTooLong:
        Note(fmt::format("message: more than {}, the limit; not sent", FormatBytes(kMaxMessageBytes)));
        return Input::kNothing;
      case LineReader::Outcome::kEnd:
        if (fenced && !message.empty()) return Input::kMessage;  // a pipe may end inside a fence
        prompt("\n");
        return Input::kEnd;
      case LineReader::Outcome::kLine:
        break;
    }
    if (line.ends_with('\r')) line.pop_back();
    std::string_view text = line;
    if (!fenced && text.starts_with(kFence)) {
      fenced = true;
      text.remove_prefix(kFence.size());
      if (text.empty()) {
        prompt("... ");
        continue;
      }
    }
    if (!fenced) {
      message = line;
      return Trim(message).empty() ? Input::kNothing : Input::kMessage;
    }
    const bool ends = text.ends_with(kFence);
    if (ends) text.remove_suffix(kFence.size());
    if (message.size() + text.size() > kMaxMessageBytes) {
      Note(fmt::format("message: more than {}, the limit; not sent", FormatBytes(kMaxMessageBytes)));
      return Input::kNothing;
    }
    if (!message.empty() && !(ends && text.empty())) message += '\n';
    message += text;
    if (ends) return Trim(message).empty() ? Input::kNothing : Input::kMessage;
    prompt("... ");
  }
}

int Talk(Conversation& conversation, const ChatFlags& flags) {
  const bool typed = StdinIsTerminal(), decorated = typed && StdoutIsTerminal();
  // Ctrl-C stops an answer for a person at the keyboard, but the program when messages come from a script.
  const auto ends = [&](const Conversation& talk) { return talk.interrupted() && !typed; };
  if (flags.first_option->count() > 0) {
    if (decorated) (void)WriteOut(fmt::format("> {}\n", flags.first_message));
    const Status turned = conversation.Turn(flags.first_message);
    if (!turned) return FailWith(turned.error());
    if (ends(conversation)) return ExitInterrupted();
    if (flags.single_turn) return conversation.failed() ? kExitFailed : kExitDone;
  } else if (decorated) {
    (void)WriteOut("Ask something; /help lists the commands.\n");
  }
  LineReader reader;
  std::string message;
  while (true) {
    const Input input = ReadMessage(reader, decorated, message);
    if (input == Input::kEnd) break;
    if (input == Input::kInterrupted && !typed) return ExitInterrupted();
    if (input != Input::kMessage) continue;
    if (message[0] == '/' && message.find('\n') == std::string::npos) {
      const auto stays = conversation.Command(Trim(message));
      if (!stays) return FailWith(stays.error());
      if (!*stays) break;
      continue;
    }
    const Status turned = conversation.Turn(message);
    if (!turned) return FailWith(turned.error());
    if (ends(conversation)) return ExitInterrupted();
    if (flags.single_turn) break;
  }
  // A person saw each complaint; a script sees the exit code.
  return conversation.failed() && !decorated ? kExitFailed : kExitDone;
}

}  // namespace

int RunChat(const std::vector<std::string>& args) {
  CLI::App app("Talks with a model; /help inside lists the commands.", "chat");
  ChatFlags flags;
  flags.AddTo(app);
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  auto options = flags.engine.Options();
  if (!options) return UsageError("chat: " + options.error().message);
  if (const Status filled = flags.npu.Fill(*options); !filled) return UsageError("chat: " + filled.error().message);
  if (const Status good = flags.npu.CheckNoTrace(); !good) return UsageError("chat: " + good.error().message);
  const SamplerParams params = flags.sampler.Params();
  auto sampler = Sampler::Make(params);
  if (!sampler) return UsageError("chat: " + sampler.error().message);
  auto engine = OpenEngine(flags.engine.model(), *options);
  if (!engine) return FailWith(engine.error());
  PrintWarnings(engine->info());
  flags.npu.NoteWhatIsOtherwise(engine->plan_lengths());
  if (flags.chat_template.empty() && engine->chat_format().empty()) {
    std::string known;
    for (const std::string_view format : Engine::ChatFormats()) known += fmt::format(" {}", format);
    return FailWith(
        {Code::kUnsupported, fmt::format("'{}': the model names no chat format that is built in; choose one with "
                                         "--chat-template:{}",
                                         flags.engine.model(), known)});
  }
  auto session = engine->NewSession();
  if (!session) return FailWith(session.error());
  CatchInterrupts(Keeps::kConversation);
  Conversation conversation(*engine, std::move(*session), flags, std::move(*sampler), params);
  const int exit_code = Talk(conversation, flags);
  if (flags.npu.wanted()) PrintNpuReport(conversation.report(), flags.stats);
  return exit_code;
}

}  // namespace npumoe
