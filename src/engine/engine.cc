// SPDX-License-Identifier: Apache-2.0
#include "npumoe/engine.h"

#include <algorithm>

#include "base/check.h"
#include "engine/build_info.h"
#include "engine/engine_impl.h"
#include "engine/model_info.h"
#include "engine/options.h"
#include "engine/system.h"
#include "format/chat_format.h"
#include "format/pretokenizer.h"
#include "graph/hash.h"
#include "kernels/blas.h"
#include "model/model_hash.h"

namespace npumoe {
namespace {

Status CheckVocabulary(const Model& model, const Tokenizer& tokenizer) {
  // Models pad their embedding; a tokenizer that can produce ids beyond it belongs to another model.
  if (tokenizer.vocab_size() <= model.config().vocab_size) return Ok{};
  return MakeError(Code::kCorruptFile, "{}: tokenizer has {} tokens, the embedding {} rows", model.path(),
                   tokenizer.vocab_size(), model.config().vocab_size);
}

struct Opened {
  Model model;
  Tokenizer tokenizer;
  ModelInfo info;
};

Result<Opened> OpenAll(const std::string& path, const EngineOptions& options) {
  NM_TRY_VAR(Model model, Model::Open(path, ConfigOptions{options.phimoe_llama_cpp}));
  NM_TRY_VAR(Tokenizer tokenizer, OpenTokenizer(model, options.tokenizer_pre));
  NM_TRY(CheckVocabulary(model, tokenizer));
  ModelInfo info = MakeModelInfo(model, tokenizer);
  info.kv_type = options.kv_type;
  NM_TRY_VAR(info.kv_bytes_per_token, KvBytesPerToken(options.kv_type, model.config()));
  return Opened{std::move(model), std::move(tokenizer), std::move(info)};
}

}  // namespace

Result<Engine> Engine::Open(const std::string& path, const EngineOptions& options, const GoOnFn& go_on) {
  NM_TRY_VAR(Opened opened, OpenAll(path, options));
  NM_TRY_VAR(const EngineOptions filled, FillDefaults(options, opened.model.config()));
  std::optional<NpuSetup> setup;
  if (!filled.npu.device.empty()) {
    NM_TRY_VAR(setup, SetUpNpu(opened.model, filled, go_on));
  }
  return Engine(std::make_unique<Impl>(std::move(opened.model), std::move(opened.tokenizer), std::move(opened.info),
                                       filled, std::move(setup)));
}

Result<ModelInfo> DescribeModel(const std::string& path, const EngineOptions& options) {
  NM_TRY_VAR(Opened opened, OpenAll(path, options));
  return std::move(opened.info);
}

const ModelInfo& Engine::info() const { return impl_->info; }
const EngineOptions& Engine::options() const { return impl_->options; }

RunIdentity Engine::identity() const {
  const EngineOptions& options = impl_->options;
  RunIdentity identity;
  identity.model_hash = ModelHash(impl_->model);
  identity.numerics = fmt::format("kv {}, activations {} bits{}{}", KvTypeName(options.kv_type),
                                  options.activation_bits, options.phimoe_llama_cpp ? ", phimoe as llama.cpp" : "",
                                  options.tokenizer_pre.empty() ? "" : ", tokenizer " + options.tokenizer_pre);
  if (impl_->npu == nullptr) return identity;
  ContentHash hash;
  hash.Add(ToJson(impl_->npu->plan()));
  identity.npu = options.npu.device;
  identity.plan_hash = hash.Hex();
  identity.overflow = ToString(impl_->npu->plan().mode);
  return identity;
}

PlanLengths Engine::plan_lengths() const {
  if (impl_->npu == nullptr) return {};
  const Plan& plan = impl_->npu->plan();
  return {plan.chunk_tokens, plan.moe_batch_tokens};
}

std::vector<int32_t> Engine::Tokenize(std::string_view text, bool add_special, bool parse_special) const {
  return impl_->tokenizer.Encode(text, {add_special, parse_special});
}

std::string Engine::TokenBytes(int32_t id, bool special) const { return impl_->tokenizer.Piece(id, special); }

std::string Engine::Detokenize(std::span<const int32_t> ids, bool special) const {
  return impl_->tokenizer.Decode({ids.begin(), ids.end()}, special);
}

bool Engine::IsEndOfGeneration(int32_t id) const {
  const auto& ids = impl_->model.config().eos_ids;
  return impl_->tokenizer.IsEog(id) || std::find(ids.begin(), ids.end(), id) != ids.end();
}

std::optional<int32_t> Engine::FindToken(std::string_view text) const { return impl_->tokenizer.Find(text); }

std::string Engine::chat_format() const {
  const auto format = DetectChatFormat(impl_->tokenizer.chat_template());
  return format ? std::string(*format) : std::string();
}

std::vector<std::string_view> Engine::ChatFormats() { return ChatFormatNames(); }
std::vector<std::string_view> Engine::PreTokenizers() { return PreRuleNames(); }

Result<std::vector<int32_t>> Engine::EncodeChat(std::span<const Message> messages, bool add_generation_prompt,
                                                std::string_view format) const {
  const std::string own = chat_format();
  if (format.empty()) format = own;
  if (format.empty()) {
    return MakeError(Code::kUnsupported, "{}: names no chat format that is built in: choose one with --chat-template",
                     impl_->info.path);
  }
  std::vector<ChatMessage> chat;
  for (const Message& message : messages) chat.push_back({message.role, message.content});
  NM_TRY_VAR(const auto pieces, RenderChat(format, chat, add_generation_prompt));
  std::vector<int32_t> ids;
  const SpecialTokens& special = impl_->tokenizer.special();
  if (special.add_bos && special.bos) ids.push_back(*special.bos);
  for (const ChatPiece& piece : pieces) {
    const auto part = impl_->tokenizer.Encode(piece.text, {/*add_special=*/false, /*parse_special=*/piece.is_markup,
                                                           /*is_continuation=*/&piece != &pieces[0]});
    // A format may spell out the BOS that the tokenizer adds: one is enough.
    const bool twice = !ids.empty() && ids.size() == 1 && !part.empty() && special.bos && part[0] == *special.bos &&
                       ids[0] == *special.bos;
    ids.insert(ids.end(), part.begin() + (twice ? 1 : 0), part.end());
  }
  return ids;
}

Result<Session> Engine::NewSession() {
  NM_TRY_VAR(KvCache kv,
             KvCache::Make(impl_->model.config(), KvDType(impl_->options.kv_type), impl_->options.context_tokens));
  auto session = std::make_unique<Session::Impl>(*impl_, std::move(kv));
  session->report.plan = impl_->plan_source;
  session->report.plan_refused = impl_->plan_refused;
  if (impl_->npu) session->report.npu = impl_->npu->spec().name;
  return Session(std::move(session));
}

BuildInfo GetBuildInfo() {
  BuildInfo info{kVersion, kCommit, kCompiler, SimdTargetName(), BlasName(), false};
#if !defined(NDEBUG)
  info.is_debug = true;
#endif
  return info;
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

}  // namespace npumoe
