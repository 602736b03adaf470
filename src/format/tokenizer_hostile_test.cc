// SPDX-License-Identifier: Apache-2.0
// Texts that broke other tokenizers: long runs must take linear time and little stack.
#include <gtest/gtest.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <thread>

#include "format/pretokenizer.h"
#include "format/tokenizer.h"
#include "format/vocabulary.h"

namespace npumoe {
namespace {

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::string Repeat(std::string_view unit, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += unit;
  return out;
}

// Units of runs, in the order of the reports that named them.
const std::string kUnits[] = {"A",  " ",      ".",       "中",   "a\u0301", "a",
                              "\n", " \n",    "\t",      "7",    "ab",      "\u0301\u0316",
                              "'s", "\u00A0", "😀\u200D", "\xFF", "a\xC3",   "<|x"};

// A byte-level vocabulary in which runs of most units merge to long tokens.
struct ByteVocabulary {
  std::vector<std::string> tokens;
  std::vector<std::string> merges;
};

ByteVocabulary MakeByteVocabulary() {
  ByteVocabulary out;
  for (int byte = 0; byte < 256; ++byte) out.tokens.push_back(LettersOfBytes(std::string(1, static_cast<char>(byte))));
  for (const char* const unit : {"A", "a", ".", " ", "\n", "\t", "7"}) {
    std::string text = LettersOfBytes(unit);
    for (int doubling = 0; doubling < 5; ++doubling) {
      out.merges.push_back(text + " " + text);
      text += text;
      out.tokens.push_back(text);
    }
  }
  return out;
}

GgufMetadata ByteLevelMetadata(const ByteVocabulary& vocabulary, std::string_view pre) {
  GgufMetadata metadata;
  metadata["tokenizer.ggml.model"] = std::string_view("gpt2");
  metadata["tokenizer.ggml.pre"] = pre;
  metadata["tokenizer.ggml.tokens"] =
      GgufArray(std::vector<std::string_view>(vocabulary.tokens.begin(), vocabulary.tokens.end()));
  metadata["tokenizer.ggml.merges"] =
      GgufArray(std::vector<std::string_view>(vocabulary.merges.begin(), vocabulary.merges.end()));
  return metadata;
}

GgufMetadata SpmMetadata(const std::vector<std::string>& bytes) {
  std::vector<std::string_view> tokens(bytes.begin(), bytes.end());
  std::vector<int64_t> kinds(tokens.size(), 6);
  std::vector<double> scores(tokens.size(), 0);
  for (const std::string_view text : {"▁", "▁▁", "▁▁▁▁", "a", "aa", "aaaa", "▁a", "A", "AA", ".", "..", "...."}) {
    tokens.push_back(text);
    kinds.push_back(1);
    scores.push_back(-static_cast<double>(tokens.size()));
  }
  GgufMetadata metadata;
  metadata["tokenizer.ggml.model"] = std::string_view("llama");
  metadata["tokenizer.ggml.tokens"] = GgufArray(tokens);
  metadata["tokenizer.ggml.token_type"] = GgufArray(kinds);
  metadata["tokenizer.ggml.scores"] = GgufArray(scores);
  return metadata;
}

std::vector<std::string> ByteNames() {
  std::vector<std::string> names;
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    names.push_back(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">");
  }
  return names;
}

double EncodeSeconds(const Tokenizer& tokenizer, const std::string& text) {
  const double start = ThreadSeconds();
  const auto ids = tokenizer.Encode(text, {.parse_special = true});
  EXPECT_FALSE(ids.empty());
  return ThreadSeconds() - start;
}

// Eight times the text may take little more than eight times as long (log n); quadratic growth takes 64 times.
void ExpectLinear(const Tokenizer& tokenizer) {
  constexpr size_t kShort = 12'500, kLong = 100'000;
  constexpr double kMaxGrowth = 24;
  constexpr double kNoise = 2e-3;  // seconds; shorter times say nothing
  for (const std::string& unit : kUnits) {
    const double few = std::max(EncodeSeconds(tokenizer, Repeat(unit, kShort)), kNoise);
    double many = EncodeSeconds(tokenizer, Repeat(unit, kLong));
    // Other work on the machine only adds: a second look decides.
    if (many / few >= kMaxGrowth) many = std::min(many, EncodeSeconds(tokenizer, Repeat(unit, kLong)));
    EXPECT_LT(many / few, kMaxGrowth) << tokenizer.description() << ": " << testing::PrintToString(unit) << " took "
                                      << few << " s, then " << many << " s";
  }
}

// One name for each set of patterns in the table.
std::vector<std::string_view> DistinctRules() {
  std::vector<std::string_view> names;
  std::vector<const void*> seen;
  for (const std::string_view name : PreRuleNames()) {
    const void* const patterns = FindPreRule(name)->patterns.data();
    if (std::find(seen.begin(), seen.end(), patterns) != seen.end()) continue;
    seen.push_back(patterns);
    names.push_back(name);
  }
  return names;
}

class HostileText : public testing::TestWithParam<std::string_view> {};

TEST_P(HostileText, TakesLinearTimeInEveryByteLevelRule) {
  const ByteVocabulary vocabulary = MakeByteVocabulary();
  const auto tokenizer = Tokenizer::FromMetadata(ByteLevelMetadata(vocabulary, GetParam()), "m.gguf");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  ExpectLinear(*tokenizer);
}

INSTANTIATE_TEST_SUITE_P(Rules, HostileText, testing::ValuesIn(DistinctRules()), [](const auto& parameters) {
  std::string name(parameters.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(HostileText, TakesLinearTimeInSentencePiece) {
  const auto names = ByteNames();
  const auto tokenizer = Tokenizer::FromMetadata(SpmMetadata(names), "m.gguf");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  ExpectLinear(*tokenizer);
}

TEST(HostileText, SurvivesTheRoundTrip) {
  const ByteVocabulary vocabulary = MakeByteVocabulary();
  const auto bytes = Tokenizer::FromMetadata(ByteLevelMetadata(vocabulary, "gpt-4o"), "m.gguf");
  const auto names = ByteNames();
  const auto spm = Tokenizer::FromMetadata(SpmMetadata(names), "m.gguf");
  ASSERT_TRUE(bytes.ok() && spm.ok());
  for (const std::string& unit : kUnits) {
    const std::string text = Repeat(unit, 5000);
    EXPECT_TRUE(bytes->Decode(bytes->Encode(text, {}), false) == text) << testing::PrintToString(unit);
    EXPECT_TRUE(spm->Decode(spm->Encode(text, {}), false) == text) << testing::PrintToString(unit);
  }
  EXPECT_EQ(bytes->Encode(Repeat("A", 100), {}).size(), 4u);  // 32 + 32 + 32 + 4
  EXPECT_EQ(spm->Encode(Repeat("a", 9), {}).size(), 4u);      // ▁ aaaa aaaa a
}

TEST(Tokenizer, EncodesOnManyThreadsAtOnce) {
  const ByteVocabulary vocabulary = MakeByteVocabulary();
  const auto tokenizer = Tokenizer::FromMetadata(ByteLevelMetadata(vocabulary, "qwen2"), "m.gguf");
  ASSERT_TRUE(tokenizer.ok());
  const std::string text = Repeat("AAAA aaaa\n\n e\u0301 7777...", 200);
  const auto wanted = tokenizer->Encode(text, {});
  std::vector<std::vector<int32_t>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = tokenizer->Encode(text, {}); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, wanted);
}

// Runs `work` on a thread with a small stack.
void RunOnSmallStack(size_t stack_bytes, std::function<void()> work) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, stack_bytes), 0);
  pthread_t thread;
  const auto start = [](void* argument) -> void* {
    (*static_cast<std::function<void()>*>(argument))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, start, &work), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
}

TEST(HostileText, NeedsLittleStack) {
  constexpr size_t kStackBytes = 128 * 1024;  // sanitizers need some of it
  const ByteVocabulary vocabulary = MakeByteVocabulary();
  for (const std::string_view pre : {"qwen2", "qwen35", "gpt-4o"}) {
    const auto tokenizer = Tokenizer::FromMetadata(ByteLevelMetadata(vocabulary, pre), "m.gguf");
    ASSERT_TRUE(tokenizer.ok());
    for (const std::string& unit : kUnits) {
      size_t n_ids = 0;
      RunOnSmallStack(kStackBytes, [&] { n_ids = tokenizer->Encode(Repeat(unit, 43'000), {}).size(); });
      EXPECT_GE(n_ids, 43'000u / 32) << testing::PrintToString(unit);
    }
  }
}

}  // namespace
}  // namespace npumoe
