// SPDX-License-Identifier: Apache-2.0
// Tokenizers from tokenizer.json, made up in memory: every component, every refusal, and text cut and changed anywhere.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "format/tokenizer.h"

namespace npumoe {
namespace {

using Ids = std::vector<int32_t>;
using Json = nlohmann::json;

// Byte-level: 0 a, 1 b, 2 Ġ, 3 ab, 4 Ġab, 5 <end> (control), 6 <word> (added word), 7 <s> (control).
Json ByteLevel() {
  return Json::parse(R"json({
    "version": "1.0",
    "added_tokens": [
      {"id": 5, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
      {"id": 6, "content": "<word>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false},
      {"id": 7, "content": "<s>", "special": true}
    ],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": null,
      "fuse_unk": false, "byte_fallback": false, "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4},
      "merges": ["a b", "Ġ ab"]}
  })json");
}

// SentencePiece: 0 <unk>, 1 <s>, 2 <0x0A>, 3 ▁, 4 a, 5 ▁a.
Json Spm() {
  return Json::parse(R"json({
    "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": null,
    "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
      "vocab": {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "▁": 3, "a": 4, "▁a": 5}, "merges": [["▁", "a"]]}
  })json");
}

Result<Tokenizer> TryLoad(const Json& json, std::string_view config = {}, std::string_view generation = {}) {
  return Tokenizer::FromHuggingFace(json.dump(), config, generation, "dir");
}

Tokenizer Load(const Json& json, std::string_view config = {}, std::string_view generation = {}) {
  auto tokenizer = TryLoad(json, config, generation);
  if (!tokenizer.ok()) ADD_FAILURE() << tokenizer.error().message;
  return std::move(tokenizer).value();
}

std::string Message(const Json& json, std::string_view config = {}, std::string_view generation = {}) {
  const auto tokenizer = TryLoad(json, config, generation);
  return tokenizer.ok() ? "no error" : tokenizer.error().message;
}

// The document with the value at a JSON pointer replaced.
Json With(Json json, const std::string& pointer, const Json& value) {
  json[Json::json_pointer(pointer)] = value;
  return json;
}

TEST(JsonTokenizer, EncodesAndDecodesByteLevel) {
  const Tokenizer tokenizer = Load(ByteLevel());
  EXPECT_EQ(tokenizer.Encode("ab ab", {}), (Ids{3, 4}));
  EXPECT_EQ(tokenizer.Encode("ab", {.add_special = true}), (Ids{7, 3}));
  EXPECT_EQ(tokenizer.Encode("a<end><word>", {.parse_special = true}), (Ids{0, 5, 6}));
  EXPECT_EQ(tokenizer.Encode("<word>", {}), Ids{6});
  EXPECT_EQ(tokenizer.Decode({7, 3, 4, 5}, false), "ab ab");
  EXPECT_EQ(tokenizer.Decode({3, 5}, true), "ab<end>");
  EXPECT_EQ(tokenizer.special().bos, 7);
  EXPECT_TRUE(tokenizer.special().add_bos);
  EXPECT_EQ(tokenizer.description(), "BPE (tokenizer.json), 8 tokens");
  EXPECT_EQ(tokenizer.warnings(),
            std::vector<std::string>{"dir: tokenizer.json: 253 of 256 bytes have no token; text with them is lost"});
}

TEST(JsonTokenizer, EncodesAndDecodesSentencePiece) {
  const Tokenizer tokenizer = Load(Spm());
  EXPECT_EQ(tokenizer.Encode("a a\n", {}), (Ids{5, 5, 2}));
  EXPECT_EQ(tokenizer.Encode("xyza", {}), (Ids{3, 0, 4}));  // unknown characters in a row are one <unk>
  EXPECT_EQ(tokenizer.Encode("a<s>a", {.parse_special = true}), (Ids{5, 1, 5}));
  EXPECT_EQ(tokenizer.Decode({5, 5, 2}, false), "a a\n");
  EXPECT_EQ(tokenizer.special().unk, 0);
  EXPECT_EQ(tokenizer.description(), "SentencePiece BPE (tokenizer.json), 6 tokens");
}

TEST(JsonTokenizer, TakesMergesAsStringsAndAsPairs) {
  EXPECT_EQ(Load(With(ByteLevel(), "/model/merges", Json::parse(R"([["a", "b"], ["Ġ", "ab"]])"))).Encode("ab ab", {}),
            (Ids{3, 4}));
  // Pairs may hold spaces; a string then has more than one and is refused.
  Json spaced = With(Spm(), "/model/vocab/a b", 6);
  spaced["model"]["vocab"]["a "] = 7;
  spaced["model"]["vocab"]["b"] = 8;
  EXPECT_EQ(Message(With(spaced, "/model/merges", Json::parse(R"([["a ", "b"]])"))), "no error");
  EXPECT_EQ(Message(With(spaced, "/model/merges", Json::parse(R"(["a  b"])"))),
            "dir: tokenizer.json: model.merges[0]: 'a  b' is not two texts with one space between");
  EXPECT_EQ(Message(With(Spm(), "/model/merges", Json::parse(R"(["ab"])"))),
            "dir: tokenizer.json: model.merges[0]: 'ab' is not two texts with one space between");
  EXPECT_EQ(Message(With(Spm(), "/model/merges", Json::parse(R"([["a"]])"))),
            "dir: tokenizer.json: model.merges[0]: a list of 1 texts, wanted 2");
  EXPECT_EQ(Message(With(Spm(), "/model/merges", Json::parse("[7]"))),
            "dir: tokenizer.json: model.merges[0]: a number, wanted a string or a pair of strings");
}

TEST(JsonTokenizer, AnEmptyMergeTableIsAnError) {
  const std::string tail = "; without merges every character would be a token";
  EXPECT_EQ(Message(With(Spm(), "/model/merges", Json::array())), "dir: tokenizer.json: model.merges: empty" + tail);
  EXPECT_EQ(Message(With(Spm(), "/model/merges", nullptr)), "dir: tokenizer.json: model.merges: missing" + tail);
}

TEST(JsonTokenizer, AddedTokensKeepTheirOwnIds) {
  Json json = ByteLevel();
  json["added_tokens"][0]["id"] = 20;  // leaves a gap
  const Tokenizer tokenizer = Load(json);
  EXPECT_EQ(tokenizer.Encode("<end>", {.parse_special = true}), Ids{20});
  EXPECT_EQ(tokenizer.vocab_size(), 21u);
  EXPECT_EQ(tokenizer.Piece(12, true), "");
  EXPECT_EQ(Message(With(ByteLevel(), "/added_tokens/0/id", 4)),
            "dir: tokenizer.json: added_tokens: '<end>' has id 4, which 'Ġab' has too");
  EXPECT_EQ(Message(With(ByteLevel(), "/added_tokens/0/content", "ab")),
            "dir: tokenizer.json: tokens 3 and 5 have the same text 'ab'");
  EXPECT_EQ(Message(With(ByteLevel(), "/added_tokens/0/id", 1'000'000)),
            "dir: tokenizer.json: added_tokens[0].id: is 1000000, must be less than 1056");
}

TEST(JsonTokenizer, AddedTokensStripAndNormalize) {
  Json json = With(Spm(), "/added_tokens/2",
                   {{"id", 6}, {"content", "<u>"}, {"rstrip", true}, {"special", true}, {"normalized", false}});
  EXPECT_EQ(Load(json).Encode("<u> \na", {.parse_special = true}), (Ids{6, 5}));
  // A normalized token is looked for in normalized text: here its own text has the mark in front.
  json = With(Spm(), "/added_tokens/2", {{"id", 6}, {"content", "a a"}, {"special", false}, {"normalized", true}});
  EXPECT_EQ(Load(json).Encode("a a", {}), Ids{6});
  EXPECT_EQ(Load(json).Encode("aa a", {}), (Ids{5, 4, 5}));
}

TEST(JsonTokenizer, ReadsSplitPatternsAndNfc) {
  Json json = With(ByteLevel(), "/normalizer", {{"type", "NFC"}});
  json["pre_tokenizer"] = Json::parse(R"json({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "b"}, "behavior": "Isolated", "invert": false},
    {"type": "Split", "pattern": {"String": "+"}, "behavior": "Removed", "invert": false},
    {"type": "ByteLevel", "add_prefix_space": true, "use_regex": false}]})json");
  json["model"]["vocab"]["Ã"] = 8;
  json["model"]["vocab"]["©"] = 9;
  const Tokenizer tokenizer = Load(json);
  EXPECT_EQ(tokenizer.Encode("ab+a", {}), (Ids{2, 0, 2, 1, 2, 0}));  // every piece gets its space
  EXPECT_EQ(tokenizer.Encode("e\u0301", {}), (Ids{2, 8, 9}));
}

TEST(JsonTokenizer, ReadsMetaspaceAndDigits) {
  Json json = With(Spm(), "/normalizer", nullptr);
  json["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}};
  json["decoder"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}};
  EXPECT_EQ(Load(json).Encode("a a<s>a", {.parse_special = true}), (Ids{5, 5, 1, 4}));
  EXPECT_EQ(Load(json).Encode("a a", {.is_continuation = true}), (Ids{4, 5}));
  EXPECT_EQ(Load(json).Decode({5, 5}, false), "a a");
  json["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"add_prefix_space", false}};
  EXPECT_EQ(Load(json).Encode("a a", {}), (Ids{4, 5}));
  json["pre_tokenizer"] = {{"type", "Digits"}, {"individual_digits", true}};
  json["model"]["vocab"]["1"] = 6;
  json["model"]["vocab"]["11"] = 7;
  json["model"]["merges"] = Json::parse(R"(["1 1", "▁ a"])");
  EXPECT_EQ(Load(json).Encode("11", {}), (Ids{6, 6}));
}

TEST(JsonTokenizer, IgnoresMergesForWholeTokensWhenTold) {
  Json json = With(ByteLevel(), "/model/vocab/ba", 8);
  EXPECT_EQ(Load(json).Encode("ba", {}), (Ids{1, 0}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(Load(json).Encode("ba", {}), Ids{8});
}

TEST(JsonTokenizer, UnsupportedPartsAreNamed) {
  const std::string t = "dir: tokenizer.json: ";
  EXPECT_EQ(Message(With(Spm(), "/normalizer", {{"type", "Lowercase"}})),
            t + "normalizer: type 'Lowercase' is not supported; supported: NFC, Prepend, Replace, Sequence");
  EXPECT_EQ(Message(With(Spm(), "/normalizer/normalizers/0", {{"type", "NFKC"}})),
            t + "normalizer.normalizers[0]: type 'NFKC' is not supported; supported: NFC, Prepend, Replace, Sequence");
  EXPECT_EQ(Message(With(Spm(), "/pre_tokenizer", {{"type", "Whitespace"}})),
            t + "pre_tokenizer: type 'Whitespace' is not supported; supported: ByteLevel, Digits, Metaspace, Sequence, "
                "Split");
  EXPECT_EQ(
      Message(With(Spm(), "/decoder", {{"type", "WordPiece"}})),
      t + "decoder: type 'WordPiece' is not supported; supported: ByteFallback, ByteLevel, Fuse, Metaspace, Replace, "
          "Sequence, Strip");
  EXPECT_EQ(Message(With(Spm(), "/decoder/decoders/3/start", 2)),
            t + "decoder.decoders[3]: stripping 2 of ' ' in front and 0 behind; at most one space in front is");
  EXPECT_EQ(
      Message(With(Spm(), "/post_processor", {{"type", "BertProcessing"}})),
      t + "post_processor: type 'BertProcessing' is not supported; supported: ByteLevel, Sequence, TemplateProcessing");
  EXPECT_EQ(Message(With(Spm(), "/model/type", "Unigram")),
            t + "model: type 'Unigram' is not supported; supported: BPE");
  EXPECT_EQ(Message(With(Spm(), "/model/dropout", 0.1)), t + "model.dropout: is set, which is not supported");
  EXPECT_EQ(Message(With(Spm(), "/model/continuing_subword_prefix", "##")),
            t + "model.continuing_subword_prefix: is set, which is not supported");
  EXPECT_EQ(Message(With(ByteLevel(), "/pre_tokenizer",
                         {{"type", "Split"}, {"pattern", {{"Regex", "[a&&b]"}}}, {"behavior", "Isolated"}})),
            t + "pre_tokenizer: an intersection of sets at byte 2 of pattern '[a&&b]' is not supported");
}

TEST(JsonTokenizer, RefusesReplacementsWithoutEnd) {
  const std::string n = "dir: tokenizer.json: normalizer";
  const auto replace = [](std::string_view text, const std::string& content) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", text}}}, {"content", content}};
  };
  EXPECT_EQ(Message(With(Spm(), "/normalizer", replace("a", std::string(100, 'a')))),
            n + ": replacements that can make text more than 64 times as long");
  Json doubling = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  for (int i = 0; i < 10; ++i) doubling["normalizers"].push_back(replace("a", "aa"));
  EXPECT_EQ(Message(With(Spm(), "/normalizer", doubling)),
            n + ".normalizers[3]: replacements that can make text more than 64 times as long");
  EXPECT_EQ(Message(With(Spm(), "/normalizer", {{"type", "Prepend"}, {"prepend", std::string(300, 'a')}})),
            n + ": a prefix of 300 bytes, at most 256 are supported");
}

TEST(JsonTokenizer, BrokenPartsAreErrorsThatNameTheField) {
  const std::string t = "dir: tokenizer.json: ";
  EXPECT_EQ(Message(Json::array()), "dir: tokenizer.json: is no object");
  EXPECT_EQ(Message(Json::object()), "dir: tokenizer.json: 'model' is missing");
  EXPECT_EQ(Message({{"model", 7}}), t + "model: is no object");
  EXPECT_EQ(Message(With(Spm(), "/model/vocab", nullptr)), t + "model: 'vocab' is missing or no object");
  EXPECT_EQ(Message(With(Spm(), "/model/vocab/a", -1)),
            t + "model.vocab: the id of 'a' is a negative number, wanted a non-negative integer");
  EXPECT_EQ(Message(With(Spm(), "/model/vocab/a", "x")),
            t + "model.vocab: the id of 'a' is a string, wanted a non-negative integer");
  EXPECT_EQ(Message(With(Spm(), "/model/vocab/a", 3)), t + "model.vocab: '▁' has id 3, which 'a' has too");
  EXPECT_EQ(Message(With(Spm(), "/model/vocab/a", 99'999)), t + "model.vocab: 'a' has id 99999, limit 1055");
  EXPECT_EQ(Message(With(Spm(), "/model/merges/0", "a a")), t + "model.merges: merge 0: 'aa' is not in the vocabulary");
  EXPECT_EQ(Message(With(Spm(), "/model/unk_token", "?")), t + "model: unk_token '?' is not in the vocabulary");
  EXPECT_EQ(Message(With(Spm(), "/model/byte_fallback", 1)), t + "model.byte_fallback: is no bool");
  EXPECT_EQ(Message(With(Spm(), "/added_tokens", 1)), t + "added_tokens: is no array");
  EXPECT_EQ(Message(With(Spm(), "/added_tokens/0/content", 1)), t + "added_tokens[0].content: is no string");
  EXPECT_EQ(Message(With(ByteLevel(), "/post_processor/special_tokens/<s>/ids/0", 99)),
            t + "post_processor.special_tokens.<s>.ids[0]: is 99, must be less than 8");
  EXPECT_EQ(Message(With(ByteLevel(), "/post_processor/single", Json::array())),
            t + "post_processor.single: the text does not occur in the template");
  EXPECT_EQ(Tokenizer::FromHuggingFace(R"({"model": {"vocab": {}, "vocab": {}}})", {}, {}, "dir").error().message,
            t + "model.vocab: occurs twice");
  EXPECT_EQ(Tokenizer::FromHuggingFace("", {}, {}, "dir").error().message, t + "JSON is broken at byte 1");
  EXPECT_EQ(Tokenizer::FromHuggingFace(R"({"a":)" + std::string(100'000, '['), {}, {}, "dir").error().message,
            t + "nested more than 32 deep");
  EXPECT_EQ(Tokenizer::FromHuggingFace("{\"model\": \"\xFF\"}", {}, {}, "dir").error().message,
            t + "JSON is broken at byte 12");
}

TEST(JsonTokenizer, TakesSpecialTokensFromItsConfig) {
  const Tokenizer tokenizer =
      Load(ByteLevel(),
           R"({"bos_token": null, "eos_token": {"content": "<end>"}, "pad_token": "<s>", "chat_template": "T"})");
  EXPECT_EQ(tokenizer.special().eos, 5);
  EXPECT_EQ(tokenizer.special().pad, 7);
  EXPECT_EQ(tokenizer.chat_template(), "T");
  EXPECT_EQ(tokenizer.special().eog, Ids{5});
  EXPECT_EQ(Load(ByteLevel(),
                 R"({"chat_template": [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]})")
                .chat_template(),
            "D");
  const std::string c = "dir: tokenizer_config.json: ";
  EXPECT_EQ(Message(ByteLevel(), R"({"eos_token": "<gone>"})"), c + "eos_token: '<gone>' is not in the vocabulary");
  EXPECT_EQ(Load(Spm(), R"({"pad_token": "<gone>"})").warnings(),
            std::vector<std::string>{c + "pad_token: '<gone>' is not in the vocabulary"});
  EXPECT_EQ(Message(ByteLevel(), R"({"eos_token": 5})"), c + "eos_token: is no string");
  EXPECT_EQ(Message(ByteLevel(), "{"), c + "JSON is broken at byte 2 of 1");
}

TEST(JsonTokenizer, ANullBosIsNone) {
  Json json = ByteLevel();
  json.erase("post_processor");
  const Tokenizer tokenizer =
      Load(json, R"({"bos_token": null, "add_bos_token": true, "tokenizer_class": "Qwen2Tokenizer"})");
  EXPECT_EQ(tokenizer.special().bos, std::nullopt);
  EXPECT_EQ(tokenizer.Encode("ab", {.add_special = true}), Ids{3});
}

TEST(JsonTokenizer, LlamaFlagsReplaceTheTemplate) {
  const auto encode = [](std::string_view config) {
    return Load(ByteLevel(), config).Encode("ab", {.add_special = true});
  };
  const std::string names = R"("bos_token": "<s>", "eos_token": "<end>", "tokenizer_class": )";
  EXPECT_EQ(encode("{" + names + R"("LlamaTokenizerFast", "add_bos_token": false, "add_eos_token": true})"),
            (Ids{3, 5}));
  EXPECT_EQ(encode("{" + names + R"("LlamaTokenizer"})"), (Ids{7, 3}));
  EXPECT_EQ(encode("{" + names + R"("GPT2Tokenizer", "add_bos_token": false})"), (Ids{7, 3}));
}

TEST(JsonTokenizer, EndsGenerationAtEveryIdOfTheGenerationConfig) {
  EXPECT_EQ(Load(ByteLevel(), {}, R"({"eos_token_id": [6, 5]})").special().eog, (Ids{5, 6}));
  EXPECT_EQ(Load(ByteLevel(), {}, R"({"eos_token_id": [6, 5]})").special().eos, 6);
  EXPECT_EQ(Load(ByteLevel(), {}, R"({"eos_token_id": 5})").special().eog, Ids{5});
  EXPECT_EQ(Load(ByteLevel(), {}, R"({"eos_token_id": null})").special().eog, Ids{});
  EXPECT_EQ(Message(ByteLevel(), {}, R"({"eos_token_id": [5, 8]})"),
            "dir: generation_config.json: eos_token_id[1]: is 8, must be less than 8");
  EXPECT_EQ(Message(ByteLevel(), {}, R"({"eos_token_id": "5"})"),
            "dir: generation_config.json: eos_token_id: is no non-negative integer");
}

TEST(JsonTokenizer, TextCutAnywhereIsAnError) {
  for (const Json& json : {ByteLevel(), Spm()}) {
    const std::string text = json.dump();
    for (size_t size = 0; size < text.size(); ++size) {
      const auto tokenizer = Tokenizer::FromHuggingFace(text.substr(0, size), {}, {}, "dir");
      ASSERT_FALSE(tokenizer.ok()) << size;
      ASSERT_EQ(tokenizer.error().message, "dir: tokenizer.json: JSON is broken at byte " + std::to_string(size + 1));
    }
  }
}

// Whatever a changed file says: either one line of error, or a tokenizer that keeps to its own vocabulary.
TEST(JsonTokenizer, ChangedFilesAreRefusedOrWork) {
  std::mt19937 random(5);
  const auto below = [&](size_t n) { return static_cast<size_t>(random()) % n; };
  size_t n_loaded = 0, n_refused = 0;
  for (const Json& json : {ByteLevel(), Spm()}) {
    const std::string text = json.dump();
    for (int round = 0; round < 3000; ++round) {
      std::string changed = text;
      for (size_t n = 1 + below(3); n > 0; --n) {
        const size_t at = below(changed.size());
        switch (below(3)) {
          case 0:
            changed[at] = static_cast<char>(random());
            break;
          case 1:
            changed[at] = text[below(text.size())];
            break;
          case 2:
            changed.erase(at, 1 + below(8));
            break;
        }
        if (changed.empty()) break;
      }
      const auto tokenizer = Tokenizer::FromHuggingFace(changed, {}, {}, "dir");
      if (!tokenizer.ok()) {
        ++n_refused;
        for (const char c : tokenizer.error().message) ASSERT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F);
        ASSERT_LT(tokenizer.error().message.size(), 600u) << tokenizer.error().message;
        continue;
      }
      ++n_loaded;
      const Ids ids = tokenizer->Encode("ab a<s>\n\xFF", {.add_special = true, .parse_special = true});
      for (const int32_t id : ids) ASSERT_TRUE(id >= 0 && static_cast<size_t>(id) < tokenizer->vocab_size());
      tokenizer->Decode(ids, true);
    }
  }
  // Both outcomes must have been met often; names and flags that nobody reads make up much of the text.
  EXPECT_GT(n_loaded, 200u);
  EXPECT_GT(n_refused, 2000u);
}

}  // namespace
}  // namespace npumoe
