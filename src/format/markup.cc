// SPDX-License-Identifier: Apache-2.0
#include "format/markup.h"

#include "format/printable.h"

namespace npumoe {

std::string EscapedMarkup(std::string_view text, size_t limit_bytes) {
  std::string out;
  for (const char c : Printable(text, limit_bytes)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace npumoe
