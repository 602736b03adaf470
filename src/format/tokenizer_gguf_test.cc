// SPDX-License-Identifier: Apache-2.0
// Tokenizers from GGUF metadata, made up in memory.
#include <gtest/gtest.h>

#include "format/tokenizer.h"
#include "format/vocabulary.h"

namespace npumoe {
namespace {

using Ids = std::vector<int32_t>;
using Strings = std::vector<std::string_view>;
using Ints = std::vector<int64_t>;
using Floats = std::vector<double>;

// The letters of the 256 bytes, in byte order.
const std::vector<std::string>& ByteLetters() {
  static const std::vector<std::string> kLetters = [] {
    std::vector<std::string> letters;
    for (int byte = 0; byte < 256; ++byte) letters.push_back(LettersOfBytes(std::string(1, static_cast<char>(byte))));
    return letters;
  }();
  return kLetters;
}

// Ids 0..255 are the bytes, 256 "he", 257 "Ġhe", 258 <|endoftext|>, 259 <|im_end|>, 260 <think> (added word).
GgufMetadata ByteLevelMetadata() {
  Strings tokens(ByteLetters().begin(), ByteLetters().end());
  for (const std::string_view text : {"he", "Ġhe", "<|endoftext|>", "<|im_end|>", "<think>"}) tokens.push_back(text);
  Ints kinds(256 + 2, 1);
  kinds.insert(kinds.end(), {3, 3, 4});
  GgufMetadata metadata;
  metadata["tokenizer.ggml.model"] = std::string_view("gpt2");
  metadata["tokenizer.ggml.pre"] = std::string_view("qwen2");
  metadata["tokenizer.ggml.tokens"] = GgufArray(tokens);
  metadata["tokenizer.ggml.token_type"] = GgufArray(kinds);
  metadata["tokenizer.ggml.merges"] = GgufArray(Strings{"h e", "Ġ he"});
  metadata["tokenizer.ggml.eos_token_id"] = uint64_t{258};
  return metadata;
}

// SentencePiece: 0 <unk>, 1 <s>, 2 </s>, 3 <0x0A>, 4 ▁, 5 a, 6 b, 7 ▁a, 8 ab, 9 <user> (added word).
GgufMetadata SpmMetadata() {
  GgufMetadata metadata;
  metadata["tokenizer.ggml.model"] = std::string_view("llama");
  metadata["tokenizer.ggml.tokens"] =
      GgufArray(Strings{"<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "b", "▁a", "ab", "<user>"});
  metadata["tokenizer.ggml.scores"] = GgufArray(Floats{0, 0, 0, 0, -10, -10, -10, -1, -2, 0});
  metadata["tokenizer.ggml.token_type"] = GgufArray(Ints{2, 3, 3, 6, 1, 1, 1, 1, 1, 4});
  return metadata;
}

Tokenizer Load(const GgufMetadata& metadata, std::string_view pre = {}) {
  auto tokenizer = Tokenizer::FromMetadata(metadata, "m.gguf", pre);
  if (!tokenizer.ok()) ADD_FAILURE() << tokenizer.error().message;
  return std::move(tokenizer).value();
}

std::string MetadataMessage(const GgufMetadata& metadata, std::string_view pre = {}) {
  const auto tokenizer = Tokenizer::FromMetadata(metadata, "m.gguf", pre);
  return tokenizer.ok() ? "no error" : tokenizer.error().message;
}

template <typename T>
GgufMetadata WithValue(GgufMetadata metadata, const std::string& key, T value) {
  metadata["tokenizer.ggml." + key] = value;
  return metadata;
}

GgufMetadata Without(GgufMetadata metadata, const std::string& key) {
  metadata.erase("tokenizer.ggml." + key);
  return metadata;
}

TEST(GgufTokenizer, EncodesBytesAndMerges) {
  const Tokenizer tokenizer = Load(ByteLevelMetadata());
  EXPECT_EQ(tokenizer.Encode("he he", {}), (Ids{256, 257}));
  EXPECT_EQ(tokenizer.Encode("", {}), Ids{});
  EXPECT_EQ(tokenizer.Encode("é", {}), (Ids{0xC3, 0xA9}));
  EXPECT_EQ(tokenizer.Encode("e\u0301", {}), (Ids{0xC3, 0xA9}));  // qwen2 composes
  EXPECT_EQ(tokenizer.Encode(std::string_view("\0h", 2), {}), (Ids{0, 'h'}));
  EXPECT_EQ(tokenizer.description(), "BPE (qwen2), 261 tokens");
  EXPECT_EQ(tokenizer.vocab_size(), 261u);
  EXPECT_TRUE(tokenizer.warnings().empty());
}

TEST(GgufTokenizer, EncodesMalformedTextByteByByte) {
  const Tokenizer tokenizer = Load(ByteLevelMetadata());
  const std::string text = "he\xFF\xC3he\xF0\x9F\x98";
  EXPECT_EQ(tokenizer.Encode(text, {}), (Ids{256, 0xFF, 0xC3, 256, 0xF0, 0x9F, 0x98}));
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(text, {}), false), text);
}

TEST(GgufTokenizer, ControlTokensInTextNeedParseSpecial) {
  const Tokenizer tokenizer = Load(ByteLevelMetadata());
  EXPECT_EQ(tokenizer.Encode("he<|im_end|>", {.parse_special = true}), (Ids{256, 259}));
  const Ids plain = tokenizer.Encode("<|im_end|>", {});
  EXPECT_EQ(plain.size(), 10u);
  EXPECT_EQ(tokenizer.Decode(plain, false), "<|im_end|>");
  // An added word that controls nothing is always one token.
  EXPECT_EQ(tokenizer.Encode("<think>", {}), Ids{260});
}

TEST(GgufTokenizer, PiecesOfControlTokensAreEmptyUnlessAskedFor) {
  const Tokenizer tokenizer = Load(ByteLevelMetadata());
  EXPECT_EQ(tokenizer.Piece(257, false), " he");
  EXPECT_EQ(tokenizer.Piece(0xC3, false), "\xC3");
  EXPECT_EQ(tokenizer.Piece(259, false), "");
  EXPECT_EQ(tokenizer.Piece(259, true), "<|im_end|>");
  EXPECT_EQ(tokenizer.Piece(260, false), "<think>");
  EXPECT_EQ(tokenizer.Piece(-1, true), "");
  EXPECT_EQ(tokenizer.Piece(261, true), "");
  EXPECT_EQ(tokenizer.Decode({256, 258, 257}, false), "he he");
  EXPECT_EQ(tokenizer.Decode({256, 258, 257}, true), "he<|endoftext|> he");
}

TEST(GgufTokenizer, EndsGenerationAtEveryMarker) {
  const Tokenizer tokenizer = Load(ByteLevelMetadata());
  EXPECT_EQ(tokenizer.special().eog, (Ids{258, 259}));
  EXPECT_TRUE(tokenizer.IsEog(259));
  EXPECT_FALSE(tokenizer.IsEog(260));
  EXPECT_EQ(Load(WithValue(ByteLevelMetadata(), "eot_token_id", uint64_t{7})).special().eog, (Ids{7, 258, 259}));
}

TEST(GgufTokenizer, HarmonyMessagesEndWithoutEndingTheAnswer) {
  GgufMetadata metadata = SpmMetadata();
  metadata["tokenizer.ggml.tokens"] =
      GgufArray(Strings{"<unk>", "<|return|>", "<|call|>", "<0x0A>", "▁", "a", "b", "▁a", "ab", "<|end|>"});
  metadata["tokenizer.ggml.token_type"] = GgufArray(Ints{2, 3, 3, 6, 1, 1, 1, 1, 1, 3});
  EXPECT_EQ(Load(metadata).special().eog, (Ids{1, 2}));
  metadata["tokenizer.ggml.token_type"] = GgufArray(Ints{2, 3, 1, 6, 1, 1, 1, 1, 1, 3});
  EXPECT_EQ(Load(metadata).special().eog, (Ids{1, 9}));
}

TEST(GgufTokenizer, SpecialTokensComeFromTheFile) {
  const Tokenizer none = Load(ByteLevelMetadata());
  EXPECT_EQ(none.special().bos, std::nullopt);
  EXPECT_EQ(none.Encode("he", {.add_special = true}), Ids{256});
  GgufMetadata metadata = WithValue(ByteLevelMetadata(), "bos_token_id", uint64_t{258});
  EXPECT_EQ(Load(metadata).Encode("he", {.add_special = true}), Ids{256});  // gpt2 models add none unless told
  metadata = WithValue(metadata, "add_bos_token", true);
  metadata = WithValue(metadata, "add_eos_token", true);
  EXPECT_EQ(Load(metadata).Encode("he", {.add_special = true}), (Ids{258, 256, 258}));
  EXPECT_EQ(Load(metadata).Encode("he", {}), Ids{256});
  const Tokenizer warned = Load(WithValue(ByteLevelMetadata(), "add_bos_token", true));
  EXPECT_FALSE(warned.special().add_bos);
  EXPECT_EQ(warned.warnings(), std::vector<std::string>{"m.gguf: add_bos_token is set, but there is no bos_token_id"});
  EXPECT_EQ(Load(WithValue(ByteLevelMetadata(), "bos_token_id", uint64_t{UINT32_MAX})).special().bos, std::nullopt);
}

TEST(GgufTokenizer, FindsTokensBySpelling) {
  const Tokenizer tokenizer = Load(ByteLevelMetadata());
  EXPECT_EQ(tokenizer.Find("Ġhe"), 257);
  EXPECT_EQ(tokenizer.Find(" he"), std::nullopt);
  EXPECT_EQ(tokenizer.Find("<think>"), 260);
}

TEST(GgufTokenizer, SpmPutsASpaceFirstAndDropsItAgain) {
  const Tokenizer tokenizer = Load(SpmMetadata());
  EXPECT_EQ(tokenizer.Encode("ab a", {}), (Ids{7, 6, 7}));
  EXPECT_EQ(tokenizer.Encode("ab a", {.add_special = true}), (Ids{1, 7, 6, 7}));
  EXPECT_EQ(tokenizer.Encode("a<user>a", {}), (Ids{7, 9, 7}));
  EXPECT_EQ(tokenizer.Encode("\n", {}), (Ids{4, 3}));
  EXPECT_EQ(tokenizer.Encode("a中", {}), (Ids{7, 0}));  // neither the character nor its bytes are tokens
  EXPECT_EQ(tokenizer.Decode({1, 7, 6, 7, 3}, false), "ab a\n");
  EXPECT_EQ(tokenizer.Decode({1, 7}, true), "<s> a");
  EXPECT_EQ(tokenizer.Piece(7, false), " a");
  EXPECT_EQ(tokenizer.special().unk, 0);
  EXPECT_EQ(tokenizer.description(), "SentencePiece BPE, 10 tokens");
  const Tokenizer bare = Load(WithValue(SpmMetadata(), "add_space_prefix", false));
  EXPECT_EQ(bare.Encode("ab a", {}), (Ids{8, 7}));
  EXPECT_EQ(bare.Decode({7}, false), " a");
}

TEST(GgufTokenizer, Phi3MarkersSwallowWhitespace) {
  GgufMetadata metadata = SpmMetadata();
  metadata["tokenizer.ggml.tokens"] =
      GgufArray(Strings{"<unk>", "<s>", "<|end|>", "<0x0A>", "▁", "a", "b", "▁a", "<|assistant|>", "<|placeholder1|>"});
  metadata["tokenizer.ggml.token_type"] = GgufArray(Ints{2, 3, 3, 6, 1, 1, 1, 1, 3, 3});
  const Tokenizer tokenizer = Load(metadata);
  EXPECT_EQ(tokenizer.Encode("<|end|>\n<|assistant|> \n a<s> a", {.parse_special = true}), (Ids{2, 8, 7, 1, 4, 7}));
}

TEST(GgufTokenizer, AMissingPreIsTheDefaultWithAWarning) {
  const Tokenizer tokenizer = Load(Without(ByteLevelMetadata(), "pre"));
  EXPECT_EQ(tokenizer.description(), "BPE (default), 261 tokens");
  ASSERT_EQ(tokenizer.warnings().size(), 1u);
  EXPECT_EQ(tokenizer.warnings()[0],
            "m.gguf: tokenizer.ggml.pre: missing; text is split by the rule 'default', which may not be the model's");
  EXPECT_TRUE(Load(Without(ByteLevelMetadata(), "pre"), "gpt-2").warnings().empty());
}

TEST(GgufTokenizer, AnUnknownPreNamesTheKnownOnesAndCanBeOverridden) {
  const GgufMetadata metadata = WithValue(ByteLevelMetadata(), "pre", std::string_view("nonesuch"));
  const std::string message = MetadataMessage(metadata);
  EXPECT_TRUE(
      message.starts_with("m.gguf: tokenizer.ggml.pre: unknown pre-tokenizer 'nonesuch', known: default, gpt-2, "))
      << message;
  EXPECT_EQ(Load(metadata, "llama-bpe").description(), "BPE (llama-bpe), 261 tokens");
  EXPECT_NE(MetadataMessage(ByteLevelMetadata(), "bad"), "no error");
}

TEST(GgufTokenizer, BrokenFilesAreErrorsThatNameTheField) {
  const std::string g = "m.gguf: tokenizer.ggml.";
  const GgufMetadata bytes = ByteLevelMetadata(), spm = SpmMetadata();
  EXPECT_EQ(MetadataMessage({}), g + "model: missing; the file has no tokenizer");
  EXPECT_EQ(MetadataMessage(WithValue(bytes, "model", uint64_t{1})), g + "model: is no string");
  EXPECT_EQ(MetadataMessage(WithValue(bytes, "model", std::string_view("bert"))), g + "model: 'bert', supported: gpt2, llama");
  EXPECT_EQ(MetadataMessage(Without(bytes, "tokens")), g + "tokens: missing");
  EXPECT_EQ(MetadataMessage(WithValue(bytes, "tokens", GgufArray(Strings{}))), g + "tokens: no tokens");
  EXPECT_EQ(MetadataMessage(WithValue(bytes, "tokens", GgufArray(Ints{1}))), g + "tokens: is no array of strings");
  EXPECT_EQ(MetadataMessage(WithValue(bytes, "token_type", GgufArray(Ints{1, 2}))), g + "token_type: 2 entries for 261 tokens");
  EXPECT_EQ(MetadataMessage(WithValue(bytes, "token_type", GgufArray(Floats(261)))), g + "token_type: is no array of integers");
  EXPECT_EQ(MetadataMessage(WithValue(bytes, "token_type", GgufArray(Ints(261, 9)))),
            g + "token_type: token 0 has type 9, wanted 1 to 6");
  EXPECT_EQ(MetadataMessage(WithValue(bytes, "token_type", GgufArray(Ints(261, -1)))),
            g + "token_type: token 0 has type -1, wanted 1 to 6");
  EXPECT_EQ(MetadataMessage(Without(bytes, "merges")), g + "merges: missing; without merges every byte would be a token");
  EXPECT_EQ(MetadataMessage(WithValue(bytes, "merges", GgufArray(Strings{}))),
            g + "merges: no merges; without them every byte would be a token");
  EXPECT_EQ(MetadataMessage(WithValue(bytes, "merges", GgufArray(Strings{"h e", "x"}))),
            g + "merges: merge 1: 'x' has no space between two texts");
  EXPECT_EQ(MetadataMessage(WithValue(bytes, "merges", GgufArray(Strings{"h e", "h e"}))),
            "m.gguf: merge 1: the pair 'h', 'e' stands there twice");
  EXPECT_EQ(MetadataMessage(WithValue(bytes, "eos_token_id", uint64_t{261})),
            g + "eos_token_id: token id 261, but the vocabulary has 261 tokens");
  EXPECT_EQ(MetadataMessage(WithValue(bytes, "eos_token_id", 1.5)), g + "eos_token_id: is no integer");
  EXPECT_EQ(MetadataMessage(WithValue(bytes, "add_bos_token", uint64_t{1})), g + "add_bos_token: is no bool");
  EXPECT_EQ(MetadataMessage(Without(spm, "scores")), g + "scores: missing");
  EXPECT_EQ(MetadataMessage(WithValue(spm, "scores", GgufArray(Floats{1}))), g + "scores: 1 entries for 10 tokens");
  EXPECT_EQ(MetadataMessage(WithValue(spm, "scores", GgufArray(Floats(10, std::numeric_limits<double>::quiet_NaN())))),
            g + "scores: the score of token 0 is not a number");
  EXPECT_EQ(MetadataMessage(WithValue(spm, "tokens",
                         GgufArray(Strings{"<unk>", "<s>", "</s>", "<0xZZ>", "▁", "a", "b", "▁a", "ab", "u"}))),
            g + "token_type: token 3 is a byte, but its text '<0xZZ>' is not of the form <0x0A>");
  EXPECT_EQ(MetadataMessage(WithValue(spm, "tokens",
                         GgufArray(Strings{"<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "a", "▁a", "ab", "u"}))),
            "m.gguf: tokens 5 and 6 have the same text 'a'");
}

}  // namespace
}  // namespace npumoe
