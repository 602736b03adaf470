// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <fmt/format.h>

#include "format/markup.h"
#include "report/svg.h"

namespace npumoe {
namespace {

constexpr size_t kMaxText = 4000;  // bytes of a paragraph

constexpr std::string_view kStyle =
    R"(:root{color-scheme:light dark;--page:#fff;--ink:#1b1b1b;--soft:#6a6a6a;--line:#e2e2e2;--band:#d9ecd0}
@media(prefers-color-scheme:dark){:root{--page:#16181b;--ink:#e8e8e8;--soft:#a0a4a8;--line:#33373c;--band:#2c4426}}
body{margin:2rem auto;max-width:1160px;padding:0 1rem;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}
h1{font-size:1.6rem;line-height:1.25}
h2{font-size:1.2rem;margin:2.2rem 0 .4rem}
figure{margin:1rem 0 1.6rem}
.side{display:flex;flex-wrap:wrap;gap:1.2rem}
figcaption{margin-top:.6rem;color:var(--ink)}
table{border-collapse:collapse;font-size:.86rem;margin:.6rem 0}
th,td{border-bottom:1px solid var(--line);padding:.25rem .7rem .25rem 0;text-align:left;vertical-align:top}
summary{cursor:pointer;color:var(--soft)}
.scroll{overflow-x:auto}
)";

std::string ToHtml(const Table& table) {
  std::string html = "<div class=\"scroll\"><table>\n<thead><tr>";
  for (const std::string& cell : table.head) html += "<th>" + EscapedMarkup(cell, kMaxText) + "</th>";
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (const std::string& cell : row) html += "<td>" + EscapedMarkup(cell, kMaxText) + "</td>";
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace

Page::Page(std::string_view title) {
  const std::string name = EscapedMarkup(title, kMaxText);
  out_ = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" "
      "content=\"width=device-width\"/>\n<title>{0}</title>\n<style>\n{1}{2}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
      name, kStyle, DrawingStyle());
}

void Page::Heading(std::string_view text) { out_ += "<h2>" + EscapedMarkup(text, kMaxText) + "</h2>\n"; }

void Page::Paragraph(std::string_view text) { out_ += "<p>" + EscapedMarkup(text, kMaxText) + "</p>\n"; }

void Page::Figure(const std::vector<std::string>& drawings, std::string_view caption, const Table& numbers) {
  out_ += "<figure>\n<div class=\"side\">\n";
  for (const std::string& drawing : drawings) out_ += drawing;
  out_ +=
      fmt::format("</div>\n<figcaption>Figure {}. {}</figcaption>\n", ++n_figures_, EscapedMarkup(caption, kMaxText));
  if (!numbers.rows.empty()) out_ += "<details><summary>Numbers</summary>\n" + ToHtml(numbers) + "</details>\n";
  out_ += "</figure>\n";
}

void Page::Put(const Table& table) { out_ += ToHtml(table); }

std::string Page::Take() && {
  out_ += "</body>\n</html>\n";
  return std::move(out_);
}

}  // namespace npumoe
