// SPDX-License-Identifier: Apache-2.0
#include "format/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "format/bpe_model.h"

namespace npumoe {
namespace {

using Ids = std::vector<int32_t>;

Ids Merged(const MergeTable& table, Ids symbols) {
  MergeScratch scratch;
  ApplyMerges(table, &symbols, &scratch);
  return symbols;
}

// The definition: the pair of least rank, the leftmost of equals, again and again.
Ids MergedByDefinition(const MergeTable& table, Ids symbols) {
  while (true) {
    const Merge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Merge* const merge = table.Find(symbols[i], symbols[i + 1]);
      if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) {
        best = merge;
        at = i;
      }
    }
    if (best == nullptr) return symbols;
    symbols[at] = best->merged;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

TEST(MergeTable, FindsWhatWasInserted) {
  MergeTable table;
  EXPECT_EQ(table.Find(0, 1), nullptr);
  table.Reserve(2);
  EXPECT_TRUE(table.Insert(0, 1, 5, 7));
  EXPECT_FALSE(table.Insert(0, 1, 6, 8));
  EXPECT_TRUE(table.Insert(1, 0, 6, 8));
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table.Find(0, 1)->rank, 5u);
  EXPECT_EQ(table.Find(1, 0)->merged, 8);
  EXPECT_EQ(table.Find(1, 1), nullptr);
  EXPECT_EQ(table.Find(-1, 1), nullptr);
}

TEST(ApplyMerges, TakesTheLeastRankAndTheLeftmostOfEquals) {
  MergeTable table;
  table.Reserve(3);
  table.Insert(0, 0, 1, 2);  // aa
  table.Insert(0, 1, 0, 3);  // ab, before aa
  table.Insert(2, 0, 2, 4);  // aa a
  EXPECT_EQ(Merged(table, {}), Ids{});
  EXPECT_EQ(Merged(table, {0}), Ids{0});
  EXPECT_EQ(Merged(table, {0, 0, 1}), (Ids{0, 3}));
  EXPECT_EQ(Merged(table, {0, 0, 0}), Ids{4});
  EXPECT_EQ(Merged(table, {0, -1, 0}), (Ids{0, -1, 0}));
}

TEST(ApplyMerges, EqualsTheDefinitionAtEveryLength) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    MergeTable table;
    table.Reserve(40);
    int32_t next = 4;
    const bool has_ties = round % 2 == 0;
    for (uint32_t rank = 0; rank < 40; ++rank) {
      const auto left = static_cast<int32_t>(random() % static_cast<uint32_t>(next));
      const auto right = static_cast<int32_t>(random() % static_cast<uint32_t>(next));
      if (table.Insert(left, right, has_ties ? rank / 4 : rank, next)) ++next;
    }
    const size_t length = static_cast<size_t>(round);  // both ways of merging are met
    Ids symbols(length);
    for (int32_t& symbol : symbols) symbol = static_cast<int32_t>(random() % 5) - (random() % 9 == 0 ? 7 : 0);
    ASSERT_EQ(Merged(table, symbols), MergedByDefinition(table, symbols)) << "round " << round;
  }
}

Vocabulary MakeVocabulary(std::initializer_list<std::string_view> texts) {
  Vocabulary vocabulary;
  for (const std::string_view text : texts) vocabulary.texts.Add(text);
  vocabulary.kinds.assign(texts.size(), TokenKind::kNormal);
  EXPECT_TRUE(vocabulary.BuildIndex("test").ok());
  return vocabulary;
}

Ids Encoded(const BpeModel& model, std::string_view piece) {
  BpeScratch scratch;
  Ids ids;
  model.Encode(piece, &scratch, &ids);
  return ids;
}

TEST(BpeModel, MergesByScoreWithHigherScoresFirst) {
  // "abc": bc (-1) comes before ab (-2), and abc can then come from a + bc.
  const Vocabulary vocabulary = MakeVocabulary({"a", "b", "c", "ab", "bc", "abc"});
  const std::vector<double> scores{0, 0, 0, -2, -1, -3};
  const auto model = BpeModel::FromScores(vocabulary, scores, {}, "test");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(Encoded(*model, "abc"), Ids{5});
  EXPECT_EQ(Encoded(*model, "abab"), (Ids{3, 3}));
  EXPECT_EQ(Encoded(*model, "abcb"), (Ids{5, 1}));
  EXPECT_EQ(model->n_merges(), 4u);
}

TEST(BpeModel, MergesThroughCharactersThatAreNoTokens) {
  // SentencePiece joins any two neighbours whose text is a token; 'x' alone is none.
  const Vocabulary vocabulary = MakeVocabulary({"<unk>", "ax"});
  BpeModel::Options options;
  options.unk = 0;
  const auto model = BpeModel::FromScores(vocabulary, std::vector<double>{0, -1}, options, "test");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(Encoded(*model, "axx"), (Ids{1, 0}));
}

TEST(BpeModel, FallsBackToBytesOrUnk) {
  const Vocabulary vocabulary = MakeVocabulary({"<unk>", "a", "<0xC3>", "<0xA9>"});
  const std::vector<BpeModel::MergeText> none;
  BpeModel::Options options;
  options.unk = 0;
  options.byte_fallback = true;
  const auto model = BpeModel::FromMerges(vocabulary, none, options, true, "test");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(Encoded(*model, "aé"), (Ids{1, 2, 3}));
  EXPECT_EQ(Encoded(*model, "中中a"), (Ids{0, 0, 1}));  // not all its bytes are there
  EXPECT_EQ(model->n_missing_bytes(), 254u);
  options.fuse_unk = true;
  const auto fusing = BpeModel::FromMerges(vocabulary, none, options, true, "test");
  EXPECT_EQ(Encoded(*fusing, "中中a中"), (Ids{0, 1, 0}));
}

TEST(BpeModel, CutsBeforeSpaceMarksOnlyWhenNoTokenReachesAcross) {
  const auto cuts = [](std::initializer_list<std::string_view> texts) {
    const Vocabulary vocabulary = MakeVocabulary(texts);
    return BpeModel::FromScores(vocabulary, std::vector<double>(texts.size()), {}, "test")->cuts_before_mark();
  };
  EXPECT_TRUE(cuts({"▁", "a", "▁a", "▁▁", "▁▁a"}));
  EXPECT_FALSE(cuts({"▁", "a", "a▁"}));
  EXPECT_FALSE(cuts({"▁", "a", "▁a", "▁a▁", "a▁"}));
}

TEST(BpeModel, MergesOnBothSidesOfACut) {
  const Vocabulary vocabulary = MakeVocabulary({"▁", "a", "b", "▁a", "▁▁", "ab", "▁▁ab", "▁ab"});
  const std::vector<double> scores{0, 0, 0, -1, -2, -3, -4, -5};
  const auto model = BpeModel::FromScores(vocabulary, scores, {}, "test");
  ASSERT_TRUE(model->cuts_before_mark());
  // ▁a comes first everywhere, then ▁▁, then ab, then ▁a + b.
  EXPECT_EQ(Encoded(*model, "▁ab▁▁▁aab"), (Ids{7, 4, 3, 5}));
}

TEST(BpeModel, RefusesMergesOfUnknownTextsWhenStrict) {
  const Vocabulary vocabulary = MakeVocabulary({"a", "b", "ab"});
  const std::vector<BpeModel::MergeText> merges{{"a", "b"}, {"ab", "b"}};
  BpeModel::Options options;
  options.byte_level = true;
  EXPECT_EQ(BpeModel::FromMerges(vocabulary, merges, options, true, "t").error().message,
            "t: merge 1: 'abb' is not in the vocabulary");
  const auto model = BpeModel::FromMerges(vocabulary, merges, options, false, "t");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->n_merge_only_texts(), 1u);
  EXPECT_EQ(Encoded(*model, "abb"), (Ids{0, 1, 1}));  // what is no token is spelled out
}

TEST(BpeModel, RefusesRepeatedAndEmptyMerges) {
  const Vocabulary vocabulary = MakeVocabulary({"a", "b", "ab"});
  const std::vector<BpeModel::MergeText> repeated{{"a", "b"}, {"a", "b"}};
  EXPECT_EQ(BpeModel::FromMerges(vocabulary, repeated, {}, true, "t").error().message,
            "t: merge 1: the pair 'a', 'b' stands there twice");
  const std::vector<BpeModel::MergeText> empty{{"a", ""}};
  EXPECT_EQ(BpeModel::FromMerges(vocabulary, empty, {}, true, "t").error().message, "t: merge 0: one side is empty");
}

TEST(ByteOfName, WantsExactlyTwoHexadecimalDigits) {
  EXPECT_EQ(ByteOfName("<0x0A>"), 0x0A);
  EXPECT_EQ(ByteOfName("<0xff>"), 0xFF);
  for (const std::string_view text : {"<0x0>", "<0x0A0>", "<0xZZ>", "<0x0A", "0x0A>", "<0X0A>", "<0x 1>", ""}) {
    EXPECT_EQ(ByteOfName(text), std::nullopt) << text;
  }
}

TEST(ByteLetters, RoundTripEveryByte) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
  EXPECT_EQ(BytesOfLetters(LettersOfBytes(bytes)), bytes);
  EXPECT_EQ(LettersOfBytes(" \n!\xAD"), "ĠĊ!Ń");
  EXPECT_EQ(BytesOfLetters("a b"), std::nullopt);  // a space is no letter of that alphabet
  EXPECT_EQ(BytesOfLetters("中"), std::nullopt);
}

TEST(Vocabulary, FindsTheFirstOfEqualPaddingAndRefusesEqualTokens) {
  Vocabulary vocabulary;
  for (const std::string_view text : {"a", "[PAD]", "[PAD]"}) vocabulary.texts.Add(text);
  vocabulary.kinds = {TokenKind::kNormal, TokenKind::kUnused, TokenKind::kUnused};
  ASSERT_TRUE(vocabulary.BuildIndex("t").ok());
  EXPECT_EQ(vocabulary.Find("[PAD]"), 1);
  EXPECT_EQ(vocabulary.Find("b"), std::nullopt);
  vocabulary.kinds = {TokenKind::kNormal, TokenKind::kNormal, TokenKind::kNormal};
  EXPECT_EQ(vocabulary.BuildIndex("t").error().message, "t: tokens 1 and 2 have the same text '[PAD]'");
}

}  // namespace
}  // namespace npumoe
