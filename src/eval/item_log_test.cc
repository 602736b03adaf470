// SPDX-License-Identifier: Apache-2.0
#include "eval/item_log.h"

#include <gtest/gtest.h>

#include <string>

#include "base/files.h"
#include "base/temporary_folder.h"

namespace npumoe {
namespace {

const LogHeader kHeader{{"task", "boolq"}, {"plan_hash", "12ab"}};

ItemRecord Choice(uint64_t item) {
  ItemRecord record;
  record.item = item;
  record.gold = 1;
  record.log_probs = {-1.25, -0.1};
  record.exact_log_probs = {-1.5, -2};
  record.n_tokens = {1, 2};
  record.n_characters = {2, 3};
  record.expert_rows = 10;
  record.rows_dropped = 3;
  return record;
}

ItemRecord Answer(uint64_t item) {
  ItemRecord record;
  record.item = item;
  record.references = {"1234", "5678"};
  record.answers = {"it is \"1234\"\n"};
  record.n_found = 1;
  return record;
}

ItemRecord Compared(uint64_t item) {
  ItemRecord record = Answer(item);
  record.exact_answers = {"it is 1234"};
  record.exact_margin = 0.1;
  record.lost_margin = 0.3;
  return record;
}

class ItemLogTest : public testing::Test {
 protected:
  std::string Bytes() const { return ReadFile(path_).value(); }
  std::string Refusal(const LogHeader& header = kHeader) const {
    const std::string before = Bytes();
    const auto log = ItemLog::Open(path_, header);
    EXPECT_EQ(Bytes(), before);
    return log.ok() ? "" : log.error().message;
  }

  void SetUp() override {
    ASSERT_TRUE(folder_.Make("npumoe-item-log").ok());
    path_ = folder_.path() + "/items.jsonl";
  }

  TemporaryFolder folder_;
  std::string path_;
};

TEST_F(ItemLogTest, LinesMayEndAsOtherSystemsEndThem) {
  {
    auto log = ItemLog::Open(path_, kHeader).value();
    ASSERT_TRUE(log.Append(Choice(0)).ok());
  }
  std::string text;
  for (const char c : Bytes()) text += c == '\n' ? "\r\n" : std::string(1, c);
  ASSERT_TRUE(WriteFileAtomic(path_, text).ok());
  {
    auto log = ItemLog::Open(path_, kHeader);
    ASSERT_TRUE(log.ok()) << log.error().message;
    EXPECT_EQ(log->records().size(), 1u);
    ASSERT_TRUE(log->Append(Choice(1)).ok());
  }
  EXPECT_EQ(ItemLog::Open(path_, kHeader).value().records().size(), 2u);
}

TEST_F(ItemLogTest, GivesBackWhatWasWritten) {
  {
    auto log = ItemLog::Open(path_, kHeader).value();
    EXPECT_TRUE(log.records().empty());
    ASSERT_TRUE(log.Append(Choice(4)).ok());
    ASSERT_TRUE(log.Append(Answer(0)).ok());
    ASSERT_TRUE(log.Append(Compared(1)).ok());
  }
  const auto log = ItemLog::Open(path_, kHeader).value();
  ASSERT_EQ(log.records().size(), 3u);
  EXPECT_EQ(ToJsonLine(log.records().at(1)), ToJsonLine(Compared(1)));
  EXPECT_EQ(log.records().at(1).exact_margin, 0.1);
  EXPECT_EQ(log.records().at(1).lost_margin, 0.3);
  EXPECT_FALSE(log.records().at(0).exact_margin || log.records().at(0).lost_margin);
  EXPECT_EQ(ToJsonLine(log.records().at(4)), ToJsonLine(Choice(4)));
  EXPECT_EQ(log.records().at(0).answers, Answer(0).answers);
  EXPECT_EQ(log.records().at(4).exact_log_probs, Choice(4).exact_log_probs);
}

TEST_F(ItemLogTest, EveryTornTailIsCutAway) {
  std::string whole, two;
  {
    auto log = ItemLog::Open(path_, kHeader).value();
    ASSERT_TRUE(log.Append(Choice(0)).ok());
    two = Bytes();
    ASSERT_TRUE(log.Append(Choice(1)).ok());
    whole = Bytes();
  }
  const size_t header_bytes = whole.find('\n') + 1;
  for (size_t n = 0; n <= whole.size(); ++n) {
    ASSERT_TRUE(WriteFileAtomic(path_, whole.substr(0, n)).ok());
    const auto log = ItemLog::Open(path_, kHeader);
    ASSERT_TRUE(log.ok()) << n << log.error().message;
    EXPECT_EQ(log->records().size(), n == whole.size() ? 2u : n >= two.size() ? 1u : 0u) << n;
    EXPECT_EQ(Bytes(), n == whole.size() ? whole : n >= two.size() ? two : whole.substr(0, header_bytes)) << n;
  }
}

TEST_F(ItemLogTest, RefusesAnotherRunAndNamesTheDifference) {
  ASSERT_TRUE(ItemLog::Open(path_, kHeader).ok());
  EXPECT_EQ(Refusal({{"task", "piqa"}, {"plan_hash", "12ab"}}),
            path_ + ": a log of another run: task 'boolq', this one has 'piqa'");
  EXPECT_EQ(Refusal({{"task", "boolq"}, {"plan_hash", ""}}),
            path_ + ": a log of another run: plan_hash '12ab', this one has ''");
  EXPECT_EQ(Refusal({{"task", "boolq"}, {"plan_hash", "12ab"}, {"seed", "1"}}),
            path_ + ": a log of another run: seed '', this one has '1'");
}

TEST_F(ItemLogTest, LeavesOtherFilesAlone) {
  for (const std::string text : {"GGUF", "some text", "{\"a\": 1}\n", "[]\n", "\n", "{\"npumoe_eval_log\": 9}\n"}) {
    ASSERT_TRUE(WriteFileAtomic(path_, text).ok());
    EXPECT_NE(Refusal().find("line 1"), std::string::npos) << text;
  }
  EXPECT_FALSE(ItemLog::Open(folder_.path(), kHeader).ok());
}

TEST_F(ItemLogTest, RefusesBrokenLinesByNumber) {
  ASSERT_TRUE(ItemLog::Open(path_, kHeader).ok());
  const std::string header = Bytes();
  const std::string good = ToJsonLine(Choice(0)) + "\n";
  for (const std::string line :
       {"{", "{}", "7", "{\"item\": -1}", "{\"item\": 1}", "{\"item\": 1, \"references\": [\"a\"]}",
        "{\"item\": 1, \"log_probs\": [1, 2], \"n_tokens\": [1], \"n_characters\": [1, 2]}",
        "{\"item\": 1, \"gold\": 2, \"log_probs\": [1, 2], \"n_tokens\": [1, 1], \"n_characters\": [1, 2]}",
        "{\"item\": 1, \"references\": [\"a\"], \"answers\": [\"a\"], \"exact_margin\": -1}",
        "{\"item\": 1, \"references\": [\"a\"], \"answers\": [\"a\"], \"lost_margin\": \"x\"}",
        "{\"item\": 1, \"log_probs\": [1, \"x\"], \"n_tokens\": [1, 1], \"n_characters\": [1, 2]}"}) {
    ASSERT_TRUE(WriteFileAtomic(path_, header + good + line + "\n").ok());
    EXPECT_NE(Refusal().find(path_ + ": line 3: "), std::string::npos) << line << " " << Refusal();
  }
  ASSERT_TRUE(WriteFileAtomic(path_, header + good + good).ok());
  EXPECT_EQ(Refusal(), path_ + ": line 3: item 0 for the second time");
}

TEST_F(ItemLogTest, IsOneRunsAtATime) {
  const auto log = ItemLog::Open(path_, kHeader).value();
  EXPECT_EQ(Refusal(), path_ + ": another run is writing it");
}

}  // namespace
}  // namespace npumoe
