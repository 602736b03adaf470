// SPDX-License-Identifier: Apache-2.0
// Words and sentences that retrieval texts are made of.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"

namespace npumoe {

// Plain English nouns, lower case, all different.
std::span<const std::string_view> Nouns();

// One sentence in a line, of a quiet story; none has a number or one of the words that questions ask for.
std::string FillerLine(Random& random);

// "dalo", "fenuri": words of no language, all different. n <= 2000.
std::vector<std::string> MadeUpWords(Random& random, size_t n);

// `n` different ones of `words`. Precondition: n <= words.size().
std::vector<std::string> Draw(Random& random, std::span<const std::string_view> words, size_t n);

}  // namespace npumoe
