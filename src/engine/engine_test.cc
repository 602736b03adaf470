// SPDX-License-Identifier: Apache-2.0
// Whole models through the public API: the answer depends on the tokens alone, but with a BLAS.
#include "npumoe/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/test_effort.h"
#include "engine/options.h"
#include "kernels/blas.h"
#include "npumoe/make_model.h"

namespace npumoe {
namespace {

// With a BLAS the chunk length may change bits: this program's tests do without, but for one.
[[maybe_unused]] const bool without_blas = [] {
  AllowBlas(false);
  return true;
}();

class TinyModel : public testing::TestWithParam<std::string> {
 protected:
  static std::string Path(const std::string& shape, const std::string& type = "f32") {
    const auto path = std::filesystem::temp_directory_path() / ("npumoe_engine_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(path);
    const std::string file = (path / (shape + "-" + type + ".gguf")).string();
    if (!std::filesystem::exists(file)) {
      MakeModelOptions options;
      options.shape = shape;
      options.type = type;
      options.seed = 3;
      const auto bytes = MakeModel(options, file);
      EXPECT_TRUE(bytes.ok()) << bytes.error().message;
    }
    return file;
  }

  static void TearDownTestSuite() {
    std::filesystem::remove_all(std::filesystem::temp_directory_path() /
                                ("npumoe_engine_test_" + std::to_string(::getpid())));
  }
};

EngineOptions Options(uint32_t chunk, uint32_t threads, uint32_t context = 1024) {
  EngineOptions options;
  options.chunk_tokens = chunk;
  options.n_threads = threads;
  options.context_tokens = context;
  return options;
}

std::vector<int32_t> SomeTokens(size_t n, uint32_t vocab_size) {
  std::vector<int32_t> tokens(n);
  for (size_t i = 0; i < n; ++i) tokens[i] = static_cast<int32_t>((i * 7919 + 13) % vocab_size);
  return tokens;
}

// Logits after every token, prefilled as `options` say.
std::vector<float> AllLogits(const std::string& path, const EngineOptions& options, size_t n_tokens) {
  Engine engine = Engine::Open(path, options).value();
  Session session = engine.NewSession().value();
  const auto tokens = SomeTokens(n_tokens, engine.info().vocab_size);
  std::vector<float> logits(n_tokens * engine.info().vocab_size);
  EXPECT_TRUE(session.AppendWithLogits(tokens, logits).ok());
  return logits;
}

std::vector<float> LastLogits(Session& session) { return {session.logits().begin(), session.logits().end()}; }

TEST_P(TinyModel, ChunkLengthAndThreadsDoNotChangeABit) {
  const std::string path = Path(GetParam());
  const auto whole = AllLogits(path, Options(512, 1), 600);
  for (const uint32_t chunk : {1u, 7u, 64u}) EXPECT_EQ(AllLogits(path, Options(chunk, 1), 600), whole) << chunk;
  for (const uint32_t threads : {2u, 4u}) EXPECT_EQ(AllLogits(path, Options(512, threads), 600), whole) << threads;
}

TEST_P(TinyModel, ABlasAddsRoundingOnly) {
  const std::string path = Path(GetParam());
  const auto without = AllLogits(path, Options(512, 1), 100);
  AllowBlas(true);
  const auto with = AllLogits(path, Options(512, 1), 100), with_threads = AllLogits(path, Options(512, 4), 100);
  const bool used = HasBlas();
  AllowBlas(false);
  EXPECT_EQ(with_threads, with);
  EXPECT_EQ(with != without, used);
  float largest = 0.0f;
  for (const float logit : without) largest = std::max(largest, std::abs(logit));
  for (size_t i = 0; i < with.size(); ++i) ASSERT_NEAR(with[i], without[i], 1e-4f * largest) << i;
}

// A prompt, and back and forth, in every type that the cache may have.
TEST_P(TinyModel, EveryTypeOfCacheKeepsTheSamePromise) {
  const std::string path = Path(GetParam());
  std::vector<std::vector<float>> by_type;
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kQ8_0}) {
    SCOPED_TRACE(static_cast<int>(type));
    const auto options = [&](uint32_t chunk, uint32_t threads) {
      EngineOptions chosen = Options(chunk, threads);
      chosen.kv_type = type;
      return chosen;
    };
    const auto whole = AllLogits(path, options(512, 1), 150);
    EXPECT_EQ(AllLogits(path, options(1, 2), 150), whole);
    EXPECT_EQ(AllLogits(path, options(33, 4), 150), whole);
    by_type.push_back(whole);

    Engine engine = Engine::Open(path, options(16, 2)).value();
    const auto tokens = SomeTokens(150, engine.info().vocab_size);
    Session session = engine.NewSession().value();
    ASSERT_TRUE(session.Append(tokens).ok());
    session.Truncate(77);
    ASSERT_TRUE(session.Append(SomeTokens(9, 50)).ok());
    session.Truncate(77);
    for (size_t i = 77; i < 150; ++i) ASSERT_TRUE(session.Append({&tokens[i], 1}).ok());
    EXPECT_EQ(LastLogits(session), std::vector<float>(whole.end() - engine.info().vocab_size, whole.end()));
  }
  EXPECT_NE(by_type[0], by_type[1]);  // or the type would not reach the cache
  EXPECT_NE(by_type[1], by_type[2]);
}

TEST_P(TinyModel, QuantizedWeightsKeepTheSamePromise) {
  const std::string path = Path(GetParam(), "q4_0");
  for (const uint32_t bits : {8u, 16u}) {
    const auto run = [&](uint32_t chunk, uint32_t threads) {
      EngineOptions options = Options(chunk, threads);
      options.activation_bits = bits;
      return AllLogits(path, options, 130);
    };
    const auto whole = run(512, 2);
    EXPECT_EQ(run(1, 1), whole) << bits;
    EXPECT_EQ(run(33, 4), whole) << bits;
  }
}

TEST_P(TinyModel, TokenByTokenEqualsOnePrompt) {
  Engine engine = Engine::Open(Path(GetParam()), Options(16, 2)).value();
  const auto tokens = SomeTokens(40, engine.info().vocab_size);
  Session at_once = engine.NewSession().value();
  ASSERT_TRUE(at_once.Append(tokens).ok());
  Session one_by_one = engine.NewSession().value();
  for (const int32_t id : tokens) ASSERT_TRUE(one_by_one.Append({&id, 1}).ok());
  EXPECT_EQ(LastLogits(one_by_one), LastLogits(at_once));
}

TEST_P(TinyModel, TruncateForgetsExactlyTheRest) {
  Engine engine = Engine::Open(Path(GetParam()), Options(16, 2)).value();
  const auto tokens = SomeTokens(40, engine.info().vocab_size);
  Session session = engine.NewSession().value();
  ASSERT_TRUE(session.Append(tokens).ok());
  const auto wanted = LastLogits(session);
  session.Truncate(20);
  ASSERT_TRUE(session.Append(SomeTokens(9, 50)).ok());
  session.Truncate(20);
  ASSERT_TRUE(session.Append(std::span(tokens).subspan(20)).ok());
  EXPECT_EQ(LastLogits(session), wanted);
}

TEST_P(TinyModel, LogitsOfTheLastTokensAreThoseOfAll) {
  const std::string path = Path(GetParam());
  const auto all = AllLogits(path, Options(512, 2), 30);
  for (const uint32_t chunk : {7u, 64u}) {
    Engine engine = Engine::Open(path, Options(chunk, 2)).value();
    const size_t vocab_size = engine.info().vocab_size;
    const auto tokens = SomeTokens(30, engine.info().vocab_size);
    for (const size_t n_rows : {1u, 2u, 7u, 9u, 29u, 30u}) {
      Session session = engine.NewSession().value();
      std::vector<float> logits(n_rows * vocab_size);
      ASSERT_TRUE(session.AppendWithLogits(tokens, logits).ok());
      EXPECT_EQ(logits, std::vector<float>(all.end() - static_cast<ptrdiff_t>(logits.size()), all.end())) << n_rows;
      EXPECT_EQ(LastLogits(session), std::vector<float>(all.end() - static_cast<ptrdiff_t>(vocab_size), all.end()));
    }
  }
}

TEST_P(TinyModel, ExpertsAreKeptForEveryTokenAndLayer) {
  std::vector<uint32_t> whole;
  for (const uint32_t chunk : {64u, 7u}) {
    Engine engine = Engine::Open(Path(GetParam()), Options(chunk, 2)).value();
    const ModelInfo& info = engine.info();
    const auto tokens = SomeTokens(30, info.vocab_size);
    Session session = engine.NewSession().value();
    ASSERT_TRUE(session.Append(std::span(tokens).first(10)).ok());
    EXPECT_TRUE(session.experts().empty());
    session.KeepExperts(true);
    ASSERT_TRUE(session.Append(std::span(tokens).subspan(10)).ok());
    const auto experts = session.experts();
    ASSERT_EQ(experts.size(), size_t{info.n_moe_layers} * 20 * info.top_k);
    for (size_t i = 0; i < experts.size(); ++i) {
      EXPECT_LT(experts[i], info.n_experts) << i;
      EXPECT_TRUE(i % info.top_k == 0 || experts[i] != experts[i - 1]) << i;
    }
    if (chunk == 64) whole.assign(experts.begin(), experts.end());
    EXPECT_EQ(std::vector<uint32_t>(experts.begin(), experts.end()), whole);
    session.KeepExperts(false);
    EXPECT_TRUE(session.experts().empty());
  }
}

// Norms of queries and keys, layer norms with biases, a shared expert, no experts; then what has none of its own.
const std::string kFamilies[] = {"tiny-qwen3moe", "tiny-phimoe", "tiny-qwen2moe", "tiny-llama",
                                 "tiny-mixtral",  "tiny-olmoe",  "tiny-qwen3"};
INSTANTIATE_TEST_SUITE_P(Families, TinyModel, testing::ValuesIn(kFamilies, kFamilies + AllOrFew(7, 4)),
                         [](const auto& param) { return param.param.substr(5); });

class OneModel : public TinyModel {};

TEST_F(OneModel, RefusesBadTokensAndKeepsItsState) {
  Engine engine = Engine::Open(Path("tiny-qwen3moe"), Options(16, 2, 32)).value();
  Session session = engine.NewSession().value();
  const std::vector<int32_t> good{1, 2, 3};
  ASSERT_TRUE(session.Append(good).ok());
  const auto before = LastLogits(session);
  const auto vocab_size = static_cast<int32_t>(engine.info().vocab_size);
  for (const std::vector<int32_t>& bad : {std::vector<int32_t>{}, {-1}, {vocab_size}, std::vector<int32_t>(30, 1)}) {
    const Status status = session.Append(bad);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
    EXPECT_EQ(session.tokens().size(), 3u);
    EXPECT_EQ(LastLogits(session), before);
  }
  EXPECT_NE(session.Append(std::vector<int32_t>(30, 1)).error().message.find("33 tokens needed, 32 available"),
            std::string::npos);
  EXPECT_TRUE(session.Append(std::vector<int32_t>(29, 1)).ok());  // exactly full
}

TEST_F(OneModel, ACancelledPromptLeavesTheSessionAsItWas) {
  Engine engine = Engine::Open(Path("tiny-qwen3moe"), Options(8, 2)).value();
  const auto tokens = SomeTokens(40, engine.info().vocab_size);
  Session session = engine.NewSession().value();
  ASSERT_TRUE(session.Append(std::span(tokens).first(10)).ok());
  const Status status = session.Append(std::span(tokens).subspan(10), [](size_t done, size_t total) {
    EXPECT_EQ(total, 40u);
    return done < 25;
  });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kCancelled);
  EXPECT_EQ(session.tokens().size(), 10u);
  ASSERT_TRUE(session.Append(std::span(tokens).subspan(10)).ok());
  Session fresh = engine.NewSession().value();
  ASSERT_TRUE(fresh.Append(tokens).ok());
  EXPECT_EQ(LastLogits(session), LastLogits(fresh));
}

TEST_F(OneModel, LongRopeDependsOnTheLengthReachedNotOnTheWayThere) {
  const std::string path = Path("tiny-phimoe");
  Engine engine = Engine::Open(path, Options(64, 2)).value();
  // The tiny shape switches to its long factors above 256 tokens.
  ASSERT_NE(engine.info().rope.find("long factors above 256"), std::string::npos) << engine.info().rope;
  const auto tokens = SomeTokens(260, engine.info().vocab_size);
  Session session = engine.NewSession().value();
  ASSERT_TRUE(session.Append(std::span(tokens).first(255)).ok());
  for (size_t i = 255; i < 260; ++i) ASSERT_TRUE(session.Append(std::span(tokens).subspan(i, 1)).ok());
  Session at_once = engine.NewSession().value();
  ASSERT_TRUE(at_once.Append(tokens).ok());
  EXPECT_EQ(LastLogits(session), LastLogits(at_once));
  session.Truncate(100);  // and back to the short factors
  ASSERT_TRUE(session.Append(std::span(tokens).subspan(100, 1)).ok());
  Session brief = engine.NewSession().value();
  ASSERT_TRUE(brief.Append(std::span(tokens).first(101)).ok());
  EXPECT_EQ(LastLogits(session), LastLogits(brief));
}

EngineOptions OnNpu(const std::string& mode) {
  EngineOptions options = Options(512, 2);
  options.npu.device = "sim:m2-max";
  options.npu.make_plan = true;
  options.npu.plan.placement = "tiers+groups";
  options.npu.plan.chunk_tokens = 64;
  options.npu.mode = mode;
  return options;
}

TEST_F(OneModel, DroppedRowsAreNobodysAndReroutedOnesTheirNewExperts) {
  const std::string path = Path("tiny-qwen3moe");
  const auto run = [&](const EngineOptions& options, StageReport& counts) {
    Engine engine = Engine::Open(path, options).value();
    Session session = engine.NewSession().value();
    session.KeepExperts(true);
    EXPECT_TRUE(session.Append(SomeTokens(64, engine.info().vocab_size)).ok());
    counts = session.report().Experts();
    return std::vector<uint32_t>(session.experts().begin(), session.experts().end());
  };
  StageReport none, exact, pruned, rerouted;
  const auto cpu = run(Options(512, 2), none);
  EXPECT_EQ(std::ranges::count(run(OnNpu("exact"), exact), kNoExpert), 0);
  const auto dropped = run(OnNpu("prune"), pruned);
  ASSERT_GT(pruned.rows_pruned, 0u);
  EXPECT_EQ(static_cast<uint64_t>(std::ranges::count(dropped, kNoExpert)), pruned.rows_pruned);
  const auto moved = run(OnNpu("reroute"), rerouted);
  ASSERT_GT(rerouted.rows_rerouted, 0u);
  EXPECT_EQ(std::ranges::count(moved, kNoExpert), 0);
  // Of the first layer, whose inputs are the same in all runs.
  const size_t n_first = 64 * 2;
  size_t n_moved = 0;
  for (size_t i = 0; i < n_first; ++i) {
    n_moved += moved[i] != cpu[i];
    EXPECT_TRUE(dropped[i] == kNoExpert || dropped[i] == cpu[i]) << i;
  }
  EXPECT_GT(n_moved, 0u);
  EXPECT_LE(n_moved, rerouted.rows_rerouted);
}

TEST_F(OneModel, IdentityNamesWhatNumbersDependOn) {
  const std::string path = Path("tiny-qwen3moe");
  const auto identity = [&](const EngineOptions& options) { return Engine::Open(path, options).value().identity(); };
  const RunIdentity cpu = identity(Options(512, 2));
  EXPECT_EQ(identity(Options(64, 1)), cpu);
  EXPECT_EQ(cpu.npu + cpu.plan_hash + cpu.overflow, "");
  EXPECT_EQ(cpu.model_hash.size(), 32u);
  EngineOptions fine = Options(512, 2);
  fine.activation_bits = 16;
  EXPECT_NE(identity(fine), cpu);
  const RunIdentity prune = identity(OnNpu("prune")), reroute = identity(OnNpu("reroute"));
  EXPECT_EQ(prune.npu + " " + prune.overflow, "sim:m2-max prune");
  EXPECT_NE(prune.plan_hash, reroute.plan_hash);
  EXPECT_EQ(identity(OnNpu("prune")), prune);
  EXPECT_NE(Engine::Open(Path("tiny-olmoe"), Options(512, 2)).value().identity().model_hash, cpu.model_hash);
}

TEST_F(OneModel, RefusesOptionsOutOfRange) {
  const std::string path = Path("tiny-qwen3moe");
  EngineOptions odd_bits = Options(16, 1);
  odd_bits.activation_bits = 12;
  for (const EngineOptions& options : {Options(1u << 20, 1), Options(16, 100000), Options(16, 1, 1u << 30), odd_bits}) {
    const auto engine = Engine::Open(path, options);
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.error().code, Code::kInvalidArgument);
  }
}

TEST_F(OneModel, MemoryStaysInsideWhatIsStated) {
  Engine engine = Engine::Open(Path("tiny-qwen3moe"), Options(64, 2)).value();
  Session session = engine.NewSession().value();
  const uint64_t scratch = session.memory().scratch;
  ASSERT_TRUE(session.Append(SomeTokens(500, engine.info().vocab_size)).ok());
  EXPECT_EQ(session.memory().scratch, scratch);
  // Keys and values at two bytes each, for every position of the context.
  EXPECT_EQ(session.memory().kv_cache, engine.info().kv_bytes_per_token * 1024);
}

TEST_F(OneModel, BytesOfTheCacheFollowItsType) {
  const std::string path = Path("tiny-qwen3moe");  // 2 layers, 2 heads of 128 dims for keys and as many for values
  for (const auto& [type, row_bytes] :
       {std::pair{KvType::kF16, 256u}, std::pair{KvType::kF32, 512u}, std::pair{KvType::kQ8_0, 136u}}) {
    EngineOptions options = Options(64, 1, 100);
    options.kv_type = type;
    EXPECT_EQ(DescribeModel(path, options)->kv_bytes_per_token, 2 * 2 * 2 * row_bytes);
    Engine engine = Engine::Open(path, options).value();
    EXPECT_EQ(engine.info().kv_bytes_per_token, 2 * 2 * 2 * row_bytes);
    // What a run is told apart by names the type.
    EXPECT_TRUE(engine.identity().numerics.starts_with("kv " + std::string(KvTypeName(type)) + ", "));
    EXPECT_EQ(engine.NewSession()->memory().kv_cache, 2 * 2 * 2 * row_bytes * 100);
  }
}

TEST_F(OneModel, BlocksOfTheCacheMustFillTheHeads) {
  ModelConfig config;
  config.n_layers = config.n_kv_heads = 3;
  config.context_length = 100;
  EngineOptions options = Options(64, 1);
  for (const uint32_t head_dim : {8u, 48u, 80u, 96u}) {
    config.head_dim = head_dim;
    options.kv_type = KvType::kF16;
    EXPECT_TRUE(FillDefaults(options, config).ok());
    options.kv_type = KvType::kQ8_0;
    const auto filled = FillDefaults(options, config);
    ASSERT_EQ(filled.ok(), head_dim == 96);
    if (filled.ok()) continue;
    EXPECT_EQ(filled.error().code, Code::kUnsupported);
    EXPECT_EQ(filled.error().message,
              "KV cache: q8_0 wants heads of a multiple of 32 dims, the model has " + std::to_string(head_dim));
  }
}

// A vocabulary that puts a mark before the first word of a text: of the conversation, not of every message.
TEST(Engine, OnlyTheStartOfAChatGetsThePrefixOfAText) {
  const auto folder = std::filesystem::temp_directory_path() / ("npumoe_chat_test_" + std::to_string(::getpid()));
  MakeModelOptions make;
  make.shape = "tiny-qwen3moe";
  make.hugging_face = true;
  ASSERT_TRUE(MakeModel(make, folder.string()).ok());
  const std::string path = (folder / "tokenizer.json").string();
  auto tokenizer = nlohmann::json::parse(ReadFile(path).value());
  const nlohmann::json metaspace{{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}};
  tokenizer["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {metaspace, tokenizer["pre_tokenizer"]}}};
  ASSERT_TRUE(WriteFileAtomic(path, tokenizer.dump()).ok());
  const auto engine = Engine::Open(folder.string(), {});
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const std::vector<Message> chat{{"user", "hi"}, {"assistant", "yes"}};
  const auto ids = engine->EncodeChat(chat, false, "zephyr");
  ASSERT_TRUE(ids.ok()) << ids.error().message;
  EXPECT_EQ(engine->Detokenize(*ids, true), "\u2581<|user|>\nhi</s>\n<|assistant|>\nyes</s>\n");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace npumoe
