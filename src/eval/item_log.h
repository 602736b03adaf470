// SPDX-License-Identifier: Apache-2.0
// A log of finished items that a later run goes on after.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "eval/item_record.h"
#include "npumoe/result.h"

namespace npumoe {

// What the items of a log depend on: (name, value) in the order of the first line.
using LogHeader = std::vector<std::pair<std::string, std::string>>;

// One thread at a time; the file is locked against other runs as long as this lives.
class ItemLog {
 public:
  // Opens or makes the file. A last line without an end was torn off by a crash and is cut away. Fails, without
  // changing the file, with kInvalidArgument when its header has another value (named) or another run has it open, with
  // kCorruptFile when it is no such log or a line is broken (numbered), with kIo otherwise.
  static Result<ItemLog> Open(const std::string& path, const LogHeader& header);
  ItemLog(ItemLog&& other) noexcept;
  ItemLog& operator=(ItemLog&&) = delete;
  ~ItemLog();

  const std::map<uint64_t, ItemRecord>& records() const { return records_; }  // by item
  Status Append(const ItemRecord& record);

 private:
  ItemLog(int file, std::string path) : file_(file), path_(std::move(path)) {}
  Status Read(const LogHeader& header);
  Status WriteLine(std::string line);

  int file_;
  std::string path_;
  std::map<uint64_t, ItemRecord> records_;
};

}  // namespace npumoe
