// SPDX-License-Identifier: Apache-2.0
// An HTML page of sections, drawings, captions and tables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace npumoe {

struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};

// All text is escaped; drawings are taken as they are.
class Page {
 public:
  explicit Page(std::string_view title);

  void Heading(std::string_view text);
  void Paragraph(std::string_view text);
  // Drawings side by side where the window is wide enough, their caption, and behind a fold their numbers.
  void Figure(const std::vector<std::string>& drawings, std::string_view caption, const Table& numbers = {});
  void Put(const Table& table);

  std::string Take() &&;

 private:
  std::string out_;
  int n_figures_ = 0;
};

}  // namespace npumoe
