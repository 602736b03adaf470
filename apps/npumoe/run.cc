// SPDX-License-Identifier: Apache-2.0
// `npumoe run`: continue a prompt, or answer it in a chat format, streaming to stdout.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/generate.h"
#include "apps/npumoe/npu_flags.h"
#include "apps/npumoe/npu_report.h"
#include "apps/npumoe/text.h"
#include "npumoe/engine.h"
#include "npumoe/files.h"

namespace npumoe {
namespace {

constexpr size_t kMaxPromptBytes = size_t{64} << 20;  // far above any context; stops endless devices

struct RunFlags {
  EngineFlags engine;
  SamplerFlags sampler;
  NpuFlags npu;
  std::string prompt, prompt_file, system_prompt, chat_template;
  int64_t max_tokens = -1;
  bool escape = true, parse_special = false, chat = false;
  bool no_display_prompt = false, show_special = false, verbose_prompt = false, stats = false, json = false;
  CLI::Option *prompt_option = nullptr, *file_option = nullptr, *system_option = nullptr, *special_option = nullptr,
              *escape_option = nullptr;

  bool is_chat() const { return chat || !chat_template.empty() || system_option->count() > 0; }

  void AddTo(CLI::App& app) {
    engine.AddTo(app);
    const std::string group = "Prompt";
    prompt_option =
        app.add_option("-p,--prompt", prompt, "prompt text; - reads stdin, as does a pipe without -p and -f")
            ->take_last()
            ->group(group);
    file_option = app.add_option("-f,--file", prompt_file, "file with the prompt; one final newline is dropped")
                      ->take_last()
                      ->group(group);
    escape_option = app.add_flag("-e,--escape,!--no-escape", escape,
                                 "\\n, \\t, \\xNN and the like in -p become bytes; on by default");
    escape_option->group(group);
    special_option = app.add_flag("--parse-special", parse_special,
                                  "control tokens written in the prompt act as such; not in a chat");
    special_option->group(group);
    app.add_flag("--chat", chat, "the prompt is a question in the model's chat format")->group(group);
    auto* chat_option = app.add_option("--chat-template", chat_template, "the same in a named built-in format")
                            ->take_last()
                            ->check(KnownChatFormat())
                            ->group(group);
    BindEnvironment(chat_option, "CHAT_TEMPLATE");
    system_option = app.add_option("--system-prompt", system_prompt, "-sys: system message; implies --chat")
                        ->take_last()
                        ->group(group);
    const std::string output = "Output";
    auto* max_option = app.add_option("-n,--n-predict,--max-tokens", max_tokens,
                                      "tokens to generate; -1 = until the model ends or the context is full")
                           ->take_last()
                           ->check(WholeIn(-2, uint64_t{1} << 40))
                           ->group(output);
    BindEnvironment(max_option, "N_PREDICT");
    app.add_flag("--no-display-prompt", no_display_prompt, "print the generated text only")->group(output);
    app.add_flag("--special", show_special, "print control tokens too")->group(output);
    app.add_flag("--verbose-prompt", verbose_prompt, "list the prompt's tokens on stderr")->group(output);
    app.add_flag("--stats", stats, "print speeds and memory on stderr at the end")->group(output);
    app.add_flag("--json", json, "print one JSON object at the end instead of the text")->group(output);
    sampler.AddTo(app);
    npu.AddTo(app);
  }
};

// The prompt's bytes, or kInvalidArgument when none was given.
Result<std::string> ReadPrompt(const RunFlags& flags) {
  const bool from_stdin = flags.prompt_option->count() > 0 ? flags.prompt == "-" : flags.file_option->count() == 0;
  if (flags.prompt_option->count() > 0 && flags.file_option->count() > 0) {
    return Error{Code::kInvalidArgument, "run: -p and -f: give one of them"};
  }
  if (flags.prompt_option->count() > 0 && !from_stdin) {
    return flags.escape ? Unescape(flags.prompt) : flags.prompt;
  }
  if (from_stdin && flags.prompt_option->count() == 0 && StdinIsTerminal()) {
    return Error{Code::kInvalidArgument,
                 "run: no prompt: give -p TEXT or -f FILE, or pipe text in ('npumoe chat' talks)"};
  }
  auto text = ReadAll(from_stdin ? "-" : flags.prompt_file, kMaxPromptBytes);
  if (!text && text.error().code == Code::kCancelled) return text.error();
  if (!text) return Error{Code::kIo, "prompt: " + text.error().message};
  if (text->ends_with('\n')) text->pop_back();
  return text;
}

struct Prompt {
  std::string shown;  // what is echoed; empty in a chat
  std::vector<int32_t> tokens;
  bool is_chat = false;
};

Result<Prompt> EncodePrompt(const Engine& engine, const RunFlags& flags, std::string text) {
  Prompt prompt;
  prompt.is_chat = flags.is_chat();
  if (!prompt.is_chat) {
    prompt.tokens = engine.Tokenize(text, /*add_special=*/true, flags.parse_special);
    prompt.shown = std::move(text);
    if (prompt.tokens.empty()) {
      return Error{Code::kInvalidArgument, "prompt: empty, and the model has no token that starts a text"};
    }
    return prompt;
  }
  std::vector<Message> messages;
  if (flags.system_option->count() > 0) messages.push_back({"system", flags.system_prompt});
  messages.push_back({"user", std::move(text)});
  auto tokens = engine.EncodeChat(messages, /*add_generation_prompt=*/true, flags.chat_template);
  if (!tokens) return tokens.error();
  prompt.tokens = std::move(*tokens);
  return prompt;
}

void ListTokens(const Engine& engine, const std::vector<int32_t>& tokens) {
  std::string text = fmt::format("prompt: {} tokens\n", tokens.size());
  for (const int32_t id : tokens) text += fmt::format("{:>8} '{}'\n", id, OneLine(engine.TokenBytes(id, true)));
  WriteErr(text);
}

std::string ToJson(const Generation& generation, const Prompt& prompt, const Session& session, uint64_t seed,
                   const ModelInfo& info) {
  const auto per_second = [](size_t n, double seconds) { return seconds > 0 ? static_cast<double>(n) / seconds : 0.0; };
  const MemoryUse memory = session.memory();
  nlohmann::ordered_json json;
  json["model"] = ReplaceInvalidUtf8(info.path);
  json["prompt"] = ReplaceInvalidUtf8(prompt.shown);
  json["text"] = ReplaceInvalidUtf8(generation.text);
  json["tokens"] = generation.tokens;
  json["stop_reason"] = ToString(generation.reason);
  json["seed"] = seed;
  // The names are llama.cpp's; what a simulated NPU would take stands in "npu", with a clock of its own.
  json["timings"] = {{"clock", "real time of this machine"},
                     {"prompt_n", generation.prompt_tokens},
                     {"prompt_ms", generation.prompt_seconds * 1e3},
                     {"prompt_per_second", per_second(generation.prompt_tokens, generation.prompt_seconds)},
                     {"predicted_n", generation.decode_tokens},
                     {"predicted_ms", generation.decode_seconds * 1e3},
                     {"predicted_per_second", per_second(generation.decode_tokens, generation.decode_seconds)},
                     {"first_token_ms", generation.first_token_seconds * 1e3}};
  json["memory"] = {{"program_bytes", memory.program},
                    {"mapped_weights_bytes", memory.mapped_weights},
                    {"converted_weights_bytes", memory.converted_weights},
                    {"kv_cache_bytes", memory.kv_cache},
                    {"scratch_bytes", memory.scratch},
                    {"npu_bytes", memory.npu},
                    {"bound_bytes", memory.Bound()},
                    {"peak_resident_bytes", memory.peak_resident}};
  if (!session.report().npu.empty()) json["npu"] = NpuReportJson(session.report());
  return json.dump(2) + "\n";
}

int Answer(const RunFlags& flags, Engine& engine, const Prompt& prompt) {
  const SamplerParams params = flags.sampler.Params();
  auto sampler = Sampler::Make(params);
  if (!sampler) return UsageError("run: " + sampler.error().message);
  auto session = engine.NewSession();
  if (!session) return FailWith(session.error());
  const bool streams = !flags.json;
  // A prompt that cannot be read is not shown: the error is all there is to say.
  const bool fits = prompt.tokens.size() <= engine.options().context_tokens;
  if (streams && fits && !flags.no_display_prompt) {
    const Status echoed = WriteOut(prompt.shown);
    if (!echoed) return FailWith(echoed.error());
  }
  const GenerateOptions options{
      .max_tokens = flags.max_tokens, .show_special = flags.show_special, .continues_text = !prompt.is_chat};
  const auto generation = Generate(engine, *session, *sampler, prompt.tokens, options,
                                   [&](std::string_view bytes) { return streams ? WriteOut(bytes) : Status(Ok{}); });
  if (!generation) {
    if (streams && StdoutIsTerminal()) (void)WriteOut("\n");
    return FailWith(generation.error());
  }
  const Status ended = WriteOut(streams ? "\n" : ToJson(*generation, prompt, *session, params.seed, engine.info()));
  if (!ended) return FailWith(ended.error());
  if (generation->reason == StopReason::kContext) {
    Note(fmt::format("stopped: the context of {} tokens is full (-c sets it)", engine.options().context_tokens));
  }
  if (flags.stats) WriteErr(FormatStats(*generation, session->memory(), params.seed));
  if (flags.npu.wanted() && streams) PrintNpuReport(session->report(), flags.stats);
  if (!flags.npu.trace_path().empty()) {
    const Status traced = WriteOutputFile(flags.npu.trace_path(), session->TraceJson());
    if (!traced) return FailWith(traced.error());
  }
  return generation->reason == StopReason::kInterrupted ? ExitInterrupted() : kExitDone;
}

}  // namespace

int RunRun(const std::vector<std::string>& args) {
  CLI::App app("Continues a prompt and prints prompt and text as they come.", "run");
  RunFlags flags;
  flags.AddTo(app);
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  auto options = flags.engine.Options();
  if (!options) return UsageError("run: " + options.error().message);
  if (const Status filled = flags.npu.Fill(*options); !filled) return UsageError("run: " + filled.error().message);
  if (flags.is_chat()) {
    const Status good = Refuse({flags.special_option}, "not in a chat, where a prompt is what its user says");
    if (!good) return UsageError("run: " + good.error().message);
  }
  if (flags.escape && flags.prompt_option->count() == 0) {
    const Status good = Refuse({flags.escape_option}, "of -p only: files and pipes are taken as they are");
    if (!good) return UsageError("run: " + good.error().message);
  }
  if (flags.npu.trace_path() == "-") return UsageError("run: --trace: wants a file: stdout has the text");
  const auto& npu = options->npu;
  if (const Status apart =
          CheckApart({flags.npu.trace_path()}, {flags.engine.model(), flags.prompt_file, npu.plan_path, npu.stats_path});
      !apart) {
    return UsageError("run: --trace: " + apart.error().message);
  }
  // Known now, not after the run.
  if (const Status writable = CheckOutputFile(flags.npu.trace_path()); !writable) return FailWith(writable.error());
  auto text = ReadPrompt(flags);
  if (!text)
    return text.error().code == Code::kInvalidArgument ? UsageError(text.error().message) : FailWith(text.error());

  auto engine = OpenEngine(flags.engine.model(), *options);
  if (!engine) return FailWith(engine.error());
  PrintWarnings(engine->info());
  flags.npu.NoteWhatIsOtherwise(engine->plan_lengths());
  const auto prompt = EncodePrompt(*engine, flags, std::move(*text));
  if (!prompt) return FailWith(prompt.error());
  if (flags.verbose_prompt) ListTokens(*engine, prompt->tokens);
  CatchInterrupts(Keeps::kOutput);
  return Answer(flags, *engine, *prompt);
}

}  // namespace npumoe
