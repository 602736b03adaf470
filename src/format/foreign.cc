// SPDX-License-Identifier: Apache-2.0
#include "format/foreign.h"

#include <algorithm>
#include <array>
#include <string>

namespace npumoe {
namespace {

constexpr size_t kLookBytes = 512;  // enough for a byte order mark, white space and a first tag

struct Sign {
  std::string_view start;  // lower case
  std::string_view says;
};

constexpr std::string_view kHtml = "looks like an HTML page, not a model";
constexpr std::string_view kOldGgml = "is a model in an old GGML format from before GGUF: convert it again";

constexpr std::array kSigns = {
    Sign{"<!doctype", kHtml},
    Sign{"<html", kHtml},
    Sign{"<head", kHtml},
    Sign{"<!--", kHtml},
    Sign{"<?xml", "looks like an XML document, not a model"},
    Sign{"version https://git-lfs",
         "looks like a Git LFS pointer, not the file it points to: fetch it with git lfs pull"},
    Sign{"version https://hawser",
         "looks like a Git LFS pointer, not the file it points to: fetch it with git lfs pull"},
    Sign{"{", "looks like JSON text"},
    Sign{"pk\x03\x04", "looks like a ZIP archive"},
    Sign{"\x1f\x8b", "looks like gzip data"},
    Sign{"gguf", "is a GGUF file"},
    Sign{"lmgg", kOldGgml},  // the magics are stored as little-endian words: "ggml", "ggmf", "ggjt", "ggla"
    Sign{"fmgg", kOldGgml},
    Sign{"tjgg", kOldGgml},
    Sign{"algg", kOldGgml},
};

}  // namespace

std::optional<std::string_view> DescribeForeign(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes.first(std::min(bytes.size(), kLookBytes))) {
    const auto c = static_cast<char>(b);
    text += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  std::string_view start = text;
  if (start.starts_with("\xef\xbb\xbf")) start.remove_prefix(3);  // UTF-8 byte order mark
  start.remove_prefix(std::min(start.find_first_not_of(" \t\r\n"), start.size()));
  for (const Sign& sign : kSigns) {
    if (start.starts_with(sign.start)) return sign.says;
  }
  return std::nullopt;
}

}  // namespace npumoe
