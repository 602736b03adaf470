// SPDX-License-Identifier: Apache-2.0
// The engine: open a model, keep a conversation's state, produce tokens. C++20, no third-party types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/npu.h"
#include "npumoe/plan.h"
#include "npumoe/result.h"

namespace npumoe {

// Of keys and values in the cache. kQ8_0, 8 bits and a scale for every 32 dimensions, takes 53 % of kF16 and wants a
// head_dim that is a multiple of 32 (else kUnsupported); its rounding is told in docs/numerics.md.
enum class KvType { kF16, kF32, kQ8_0 };
std::string_view KvTypeName(KvType type);  // "f16"

// Prompts on an NPU; decode stays on the CPU.
struct NpuOptions {
  // "sim:m2-max": a simulated NPU, computes here and keeps a virtual clock. "coreml", "coreml:gpu", "coreml:cpu": Core
  // ML with the Neural Engine, the GPU or the CPU. Empty = CPU only.
  std::string device;
  std::string plan_path;   // empty = the model's own plan (SidecarPath) when it has one for this NPU, or else made now
  std::string stats_path;  // routing statistics that the plan must stand on; empty = the model's own, if there are any
  bool make_plan = false;  // make one from `plan` even when the model has its own
  PlanOptions plan;        // for a plan made now; its npu is the device's
  std::string mode;        // overrides the plan's overflow mode; empty = the plan's
  // Core ML only:
  std::string spec;              // whose numbers to plan with, a name of DescribeNpus(); empty = this machine's
  std::string cache_folder;      // of compiled programs; empty = DefaultCacheFolder()
  uint64_t cache_bytes = 0;      // 0 = kDefaultCacheBytes
  double keep_warm_seconds = 0;  // the NPU is kept awake for so long after its last use; 0 = never
  // Command that new packages are compiled and tried with, in a process of its own: it gets PACKAGE COMPILED UNITS and
  // calls CompilePackage. Empty: in this process, which a package that kills Core ML would end.
  std::vector<std::string> compiler;
};

struct EngineOptions {
  uint32_t n_threads = 0;       // 0 = all cores
  uint32_t context_tokens = 0;  // positions a session can hold; 0 = the model's trained context
  uint32_t chunk_tokens = 512;  // prompt tokens prefilled together; results depend on it with a BLAS only
  KvType kv_type = KvType::kF16;
  // Of the integers that activations become before they meet block-quantized weights, where the CPU has the means
  // (AVX2, AVX-512 VNNI, Arm dotprod and i8mm): 8 is fast and as exact as llama.cpp, 16 is next to f32. 0 = 8, or 16 beside an NPU, whose fp16 is
  // finer than 8 bits.
  uint32_t activation_bits = 0;
  bool phimoe_llama_cpp = false;  // PhiMoE as llama.cpp reads it: softmax over the two winners, RMS norm
  std::string tokenizer_pre;      // overrides tokenizer.ggml.pre; empty = the file's
  NpuOptions npu;
  bool trace = false;  // keep what Session::TraceJson() shows
};

struct TensorInfo {
  std::string name;
  std::string type;   // "Q4_K"
  std::string shape;  // "[128, 768, 2048]", outermost first
  uint64_t size_bytes = 0;
};

// What `npumoe info` prints.
struct ModelInfo {
  std::string path, format;  // "GGUF v3", "Hugging Face"
  std::string family, name;
  std::string type;                            // dtype that holds most bytes
  std::string tokenizer;                       // "BPE (qwen2), 151936 tokens"
  uint64_t n_params = 0, n_active_params = 0;  // active: per token, embedding row not counted
  uint64_t size_bytes = 0;
  uint64_t expert_bytes = 0;        // one expert of the first MoE layer, gate + up + down
  KvType kv_type = KvType::kF16;    // as asked for
  uint64_t kv_bytes_per_token = 0;  // in kv_type
  uint32_t vocab_size = 0, context_length = 0, dim = 0, n_layers = 0, n_moe_layers = 0;
  uint32_t n_heads = 0, n_kv_heads = 0, head_dim = 0, ffn_dim = 0;
  uint32_t n_experts = 0, top_k = 0, expert_dim = 0, shared_expert_dim = 0;
  std::string router;  // "softmax, top-8, renormalised"
  std::string rope;    // "theta 1e6, 128 of 128 dims"
  std::string norm;    // "RMS norm, eps 1e-06, q/k norm per head"
  std::vector<TensorInfo> tensors;
  std::vector<std::string> warnings;
};

// What the numbers of a run depend on beside its tokens: two runs with equal ones may go on as one.
struct RunIdentity {
  std::string model_hash;  // of weights and hyper-parameters, 32 hex digits
  std::string numerics;    // "kv f16, activations 16 bits"
  std::string npu;         // the device as it was asked for; this and the next two are empty without one
  std::string plan_hash;   // 32 hex digits
  std::string overflow;    // the mode in force: "exact", "prune", "reroute"

  bool operator==(const RunIdentity&) const = default;
};

struct SamplerParams {
  float temperature = 0.8f;     // <= 0: greedy
  uint32_t top_k = 40;          // 0 = off
  float top_p = 0.95f;          // 1 = off
  float min_p = 0.05f;          // 0 = off
  float repeat_penalty = 1.0f;  // 1 = off
  uint32_t repeat_last_n = 64;  // tokens the penalty looks back on
  uint64_t seed = 0;
};

struct Message {
  std::string role, content;
};

// Memory in bytes. Bound() holds for the process as long as it has one engine and one session.
struct MemoryUse {
  uint64_t program = 0;            // resident before scratch and cache: code, libraries, vocabulary, file header
  uint64_t mapped_weights = 0;     // file pages, shared with the page cache
  uint64_t converted_weights = 0;  // norms, biases, routers as f32
  uint64_t kv_cache = 0;           // reserved; pages are touched as positions fill
  uint64_t scratch = 0;            // activations and kernels, fixed at Open
  uint64_t npu = 0;                // a simulated NPU's programs and what feeds them; grows as new shapes run
  uint64_t peak_resident = 0;      // of the process, as the OS counts it

  uint64_t Bound() const { return program + mapped_weights + converted_weights + kv_cache + scratch + npu; }
};

// Called as a prompt is read; return false to stop (the call then fails with kCancelled).
using ProgressFn = std::function<bool(size_t done_tokens, size_t total_tokens)>;

// In Session::experts(): the row was dropped, or the layer had no need to run it.
inline constexpr uint32_t kNoExpert = UINT32_MAX;

class Session;

// Thread-safe after construction, but sessions of one engine take turns: one call at a time.
class Engine {
 public:
  // `path`: a .gguf file (any part of a split) or a Hugging Face folder. `go_on` is asked while a plan is made for
  // options.npu; kCancelled soon after it said no.
  static Result<Engine> Open(const std::string& path, const EngineOptions& options, const GoOnFn& go_on = {});
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  const ModelInfo& info() const;
  const EngineOptions& options() const;  // with 0s replaced by what was chosen
  RunIdentity identity() const;          // costs milliseconds
  PlanLengths plan_lengths() const;      // zeros without an NPU

  // Text of a user: control tokens in it stay text unless `parse_special`. BOS is added when the model asks for it
  // and `add_special` is set.
  std::vector<int32_t> Tokenize(std::string_view text, bool add_special, bool parse_special) const;
  // Bytes of one token; may end inside a UTF-8 character.
  std::string TokenBytes(int32_t id, bool special) const;
  std::string Detokenize(std::span<const int32_t> ids, bool special) const;
  bool IsEndOfGeneration(int32_t id) const;
  std::optional<int32_t> FindToken(std::string_view text) const;

  // Name of the chat format in use ("chatml"); empty if the model names none that is built in.
  std::string chat_format() const;
  static std::vector<std::string_view> ChatFormats();
  static std::vector<std::string_view> PreTokenizers();  // what EngineOptions::tokenizer_pre may be
  // Tokens of a conversation; `format` empty = chat_format(). Message text never becomes control tokens.
  Result<std::vector<int32_t>> EncodeChat(std::span<const Message> messages, bool add_generation_prompt,
                                          std::string_view format = {}) const;

  // The session borrows the engine, which must stay where it is and outlive it.
  Result<Session> NewSession();

 private:
  friend class Session;
  friend class Calibrator;
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Tokens so far and their keys and values. One thread at a time.
class Session {
 public:
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  // Appends tokens and computes the logits after the last. An empty span or ids outside the vocabulary are errors; so
  // is a context that would overflow (needed and available are in the message). On failure nothing was appended.
  Status Append(std::span<const int32_t> tokens, const ProgressFn& progress = {});
  // The same, with the logits after every one of `tokens`, or after the last ones only. out: [rows, vocab_size] for
  // 1 <= rows <= tokens.
  Status AppendWithLogits(std::span<const int32_t> tokens, std::span<float> out);

  // Whether appends keep which experts their tokens got; all layers then run for all tokens. Off at first.
  void KeepExperts(bool keep);
  // Of the last append: [MoE layers, tokens, top_k], in order of choice, kNoExpert for a dropped row. After a reroute
  // the expert that computed the row. Empty unless kept; valid until the next call.
  std::span<const uint32_t> experts() const;

  std::span<const float> logits() const;  // [vocab_size], after the last token; valid until the next call
  std::span<const int32_t> tokens() const;
  // Keeps the first `n_tokens` and forgets the rest (n_tokens <= tokens().size()).
  void Truncate(size_t n_tokens);
  MemoryUse memory() const;

  // What ran where since the session began; empty layers without an NPU.
  const RunReport& report() const;
  // Chrome trace events (Perfetto opens them), one track per device and one for the CPU. Without an NPU the times are
  // real; with a simulated one they are of its virtual clock, and the process name says so. Needs EngineOptions::trace.
  std::string TraceJson() const;

 private:
  friend class Engine;
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Draws the next token. Deterministic: same params, logits and history give the same token on every machine.
class Sampler {
 public:
  // kInvalidArgument for NaN or out-of-range parameters (named).
  static Result<Sampler> Make(const SamplerParams& params);
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;
  ~Sampler();

  // `logits` [vocab_size]; `history` all tokens so far, for the repeat penalty. Fails if no logit is finite.
  Result<int32_t> Sample(std::span<const float> logits, std::span<const int32_t> history);

 private:
  struct Impl;
  explicit Sampler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Opens just far enough to describe; reads no weights.
Result<ModelInfo> DescribeModel(const std::string& path, const EngineOptions& options);

// Commit, compiler, SIMD target, the system's BLAS if the build uses one ("Accelerate", else empty), whether assertions
// are compiled in: for --version and the machine line.
struct BuildInfo {
  std::string version, commit, compiler, simd_target, blas;
  bool is_debug = false;
};
BuildInfo GetBuildInfo();

}  // namespace npumoe
