// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval_items.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "eval/retrieval_words.h"

namespace npumoe {
namespace {

constexpr size_t kKeys = 4;         // asked for in needle-multiquery; values in needle-multivalue
constexpr size_t kDistractors = 7;  // other keys beside the one asked for in needle-multikey
constexpr size_t kChain = 5;        // variables with the same value
constexpr size_t kCommonWords = 4, kFrequentWords = 3;
constexpr uint32_t kShortAnswer = 12;  // tokens: a number of four digits and what models say before it
constexpr uint32_t kListAnswer = 48;   // likewise, up to five words or numbers

// What is put together in the end: lines that matter among units of filler.
struct Draft {
  std::string before, after;         // around all lines
  std::vector<std::string> needles;  // lines, in this order
  std::vector<std::string> questions, references;
  uint32_t answer_tokens = kShortAnswer;
  std::function<std::string(Random&)> filler;                          // one more line of it
  std::function<std::string(Random&, size_t n_units)> body = nullptr;  // instead of lines: a text of so many units
};

std::string Digits(Random& random, size_t n) {
  std::string digits(1, static_cast<char>('1' + random.Below(9)));
  while (digits.size() < n) digits += static_cast<char>('0' + random.Below(10));
  return digits;
}

// `n` different numbers.
std::vector<std::string> Numbers(Random& random, size_t n) {
  std::vector<std::string> numbers;
  while (numbers.size() < n) {
    std::string number = Digits(random, 4);
    if (std::ranges::find(numbers, number) == numbers.end()) numbers.push_back(std::move(number));
  }
  return numbers;
}

std::string Needle(const std::string& key, const std::string& value) {
  return fmt::format("The code of {} is {}.", key, value);
}

// `n_keys` keys with a number each, `n_asked` of them asked for.
Draft KeysDraft(Random& random, size_t n_keys, size_t n_asked) {
  Draft draft;
  const auto keys = Draw(random, Nouns(), n_keys);
  const auto values = Numbers(random, n_keys);
  for (size_t i = 0; i < n_keys; ++i) draft.needles.push_back(Needle(keys[i], values[i]));
  for (size_t i = 0; i < n_asked; ++i) {
    draft.questions.push_back(fmt::format("What is the code of {}?", keys[i]));
    draft.references.push_back(values[i]);
  }
  // Asked for were the first: they may stand anywhere.
  for (size_t i = 0; i < n_keys; ++i) std::swap(draft.needles[i], draft.needles[i + random.Below(n_keys - i)]);
  draft.filler = FillerLine;
  return draft;
}

Draft MultiValueDraft(Random& random) {
  Draft draft;
  const std::string key = Draw(random, Nouns(), 1)[0];
  draft.references = Numbers(random, kKeys);
  for (const std::string& value : draft.references) draft.needles.push_back(Needle(key, value));
  draft.questions = {fmt::format("What are all {} codes of {}? The codes are", kKeys, key)};
  draft.answer_tokens = kListAnswer;
  draft.filler = FillerLine;
  return draft;
}

Draft VariablesDraft(Random& random) {
  Draft draft;
  const auto names = MadeUpWords(random, kChain);
  const std::string value = Digits(random, 5);
  draft.needles.push_back(fmt::format("{} = {}", names[0], value));
  for (size_t i = 1; i < kChain; ++i) draft.needles.push_back(fmt::format("{} = {}", names[i], names[i - 1]));
  draft.references = names;
  draft.questions = {fmt::format("Which {} variables have the value {}? The variables are", kChain, value)};
  draft.answer_tokens = kListAnswer;
  draft.filler = FillerLine;
  return draft;
}

// Words in any order, each as often as it says.
std::string ShuffledWords(Random& random, const std::vector<std::pair<std::string, size_t>>& words) {
  std::vector<std::string_view> all;
  for (const auto& [word, times] : words) all.insert(all.end(), times, word);
  for (size_t i = 0; i + 1 < all.size(); ++i) std::swap(all[i], all[i + random.Below(all.size() - i)]);
  return fmt::format("{}\n", fmt::join(all, " "));
}

// Per unit each of a few words once, and as many others from all that are left: those repeat as seldom as the length
// allows.
Draft CommonWordsDraft(Random& random) {
  Draft draft;
  const auto drawn = Draw(random, Nouns(), Nouns().size());
  draft.references.assign(drawn.begin(), drawn.begin() + kCommonWords);
  draft.body = [drawn](Random& shuffle, size_t n_units) {
    std::vector<std::pair<std::string, size_t>> words;
    const size_t n_others = drawn.size() - kCommonWords, n_more = kCommonWords * n_units;
    for (size_t i = 0; i < drawn.size(); ++i) {
      const size_t other = i - kCommonWords;  // of interest beyond the common ones
      words.emplace_back(drawn[i],
                         i < kCommonWords ? n_units : n_more / n_others + (other < n_more % n_others ? 1 : 0));
    }
    return ShuffledWords(shuffle, words);
  };
  draft.before = "A list of words:\n";
  draft.questions = {fmt::format("Which {} words are the most common in the list? The words are", kCommonWords)};
  draft.answer_tokens = kListAnswer;
  return draft;
}

// Per unit 4, 3 and 2 times the frequent words, and six others.
Draft FrequentWordsDraft(Random& random) {
  constexpr size_t kOthers = 60, kOthersPerUnit = 6;
  Draft draft;
  const auto drawn = MadeUpWords(random, kFrequentWords + kOthers);
  draft.references.assign(drawn.begin(), drawn.begin() + kFrequentWords);
  draft.body = [drawn](Random& shuffle, size_t n_units) {
    std::vector<std::pair<std::string, size_t>> words;
    const size_t n_more = kOthersPerUnit * n_units;
    for (size_t i = 0; i < drawn.size(); ++i) {
      const size_t other = i - kFrequentWords;
      words.emplace_back(
          drawn[i], i < kFrequentWords ? (4 - i) * n_units : n_more / kOthers + (other < n_more % kOthers ? 1 : 0));
    }
    return ShuffledWords(shuffle, words);
  };
  draft.before = "A text in a secret code:\n";
  draft.questions = {fmt::format("Which {} words are the most frequent in the text? The words are", kFrequentWords)};
  draft.answer_tokens = kListAnswer;
  return draft;
}

struct Maker {
  RetrievalTask task;
  Draft (*make)(Random&);
};
constexpr Maker kMakers[] = {
    {{"needle-single", "one number to be found in a story"}, [](Random& r) { return KeysDraft(r, 1, 1); }},
    {{"needle-multikey", "one of eight numbers, by its key"},
     [](Random& r) { return KeysDraft(r, 1 + kDistractors, 1); }},
    {{"needle-multivalue", "all four numbers of one key"}, MultiValueDraft},
    {{"needle-multiquery", "four keys asked for one after another"},
     [](Random& r) { return KeysDraft(r, kKeys, kKeys); }},
    {{"variable-tracking", "five variables that were set from each other"}, VariablesDraft},
    {{"common-words", "the four words that a list repeats most"}, CommonWordsDraft},
    {{"frequent-words", "the three most frequent of made-up words"}, FrequentWordsDraft},
};

// Needles among the first `n_units` lines of filler, at `places` in 0..1, ascending.
std::string Assemble(const Draft& draft, const std::vector<std::string>& filler, const std::vector<double>& places,
                     size_t n_units, uint64_t shuffle_seed) {
  if (draft.body) {
    Random shuffle(shuffle_seed);
    return draft.before + draft.body(shuffle, n_units);
  }
  std::string text = draft.before;
  size_t needle = 0;
  for (size_t unit = 0; unit <= n_units; ++unit) {
    while (needle < places.size() && static_cast<size_t>(places[needle] * static_cast<double>(n_units + 1)) == unit) {
      text += draft.needles[needle++] + "\n";
    }
    if (unit < n_units) text += filler[unit] + "\n";
  }
  return text;
}

}  // namespace

std::vector<RetrievalTask> RetrievalTasks() {
  std::vector<RetrievalTask> tasks;
  for (const Maker& maker : kMakers) tasks.push_back(maker.task);
  return tasks;
}

Result<RetrievalItem> MakeRetrievalItem(std::string_view task, uint64_t seed, uint64_t item, size_t length_tokens,
                                        const CountTokensFn& count_tokens) {
  const auto maker = std::ranges::find(kMakers, task, [](const Maker& m) { return m.task.name; });
  NM_CHECK(maker != std::end(kMakers));
  // A generator of its own for every item and use: item 7 is the same whatever was made before.
  Random mixer(seed ^ (item * 0x9e3779b97f4a7c15ULL));
  Random random(mixer.Next()), filler_random(mixer.Next());
  const uint64_t shuffle_seed = mixer.Next();
  Draft draft = maker->make(random);
  std::vector<double> places(draft.needles.size());
  for (double& place : places) place = random.Uniform();
  std::ranges::sort(places);

  std::string questions;
  for (const std::string& question : draft.questions) questions += question + "\n";
  const size_t asked = count_tokens(questions) + draft.questions.size() * draft.answer_tokens;
  std::vector<std::string> filler;
  const auto make = [&](size_t n_units) {
    while (draft.filler && filler.size() < n_units) filler.push_back(draft.filler(filler_random));
    return Assemble(draft, filler, places, n_units, shuffle_seed);
  };
  const auto length = [&](size_t n_units) { return count_tokens(make(n_units)) + asked; };
  // Twice a common word is the least that tells it from the others.
  const size_t fewest = draft.body ? 2 : 0;
  const size_t least = length(fewest);
  if (least > length_tokens) {
    return MakeError(Code::kInvalidArgument, "eval: {}: a length of {} tokens, wanted at least {}", task, length_tokens,
                     least);
  }
  // Lines are about equally long: a few guesses come close, and the last steps make it right.
  constexpr size_t kSample = 16;
  constexpr int kGuesses = 4;
  size_t n_units = fewest + kSample;
  for (int i = 0; i < kGuesses && n_units > fewest; ++i) {
    const double per_unit = static_cast<double>(length(n_units) - least) / static_cast<double>(n_units - fewest);
    if (!(per_unit >= 1)) return MakeError(Code::kUnsupported, "eval: {}: the tokenizer makes no tokens of text", task);
    n_units = fewest + static_cast<size_t>(static_cast<double>(length_tokens - least) / per_unit);
  }
  while (n_units > fewest && length(n_units) > length_tokens) --n_units;
  while (length(n_units + 1) <= length_tokens) ++n_units;
  return RetrievalItem{make(n_units), draft.questions, draft.references, draft.answer_tokens};
}

uint32_t CountFound(std::string_view answer, const std::vector<std::string>& references) {
  const auto lower = [](std::string_view text) {
    std::string out(text);
    std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return out;
  };
  const std::string text = lower(answer);
  const auto is_word = [&](size_t at) {
    return at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
  };
  uint32_t n_found = 0;
  for (const std::string& reference : references) {
    const std::string wanted = lower(reference);
    for (size_t at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) {
      if ((at > 0 && is_word(at - 1)) || is_word(at + wanted.size())) continue;
      ++n_found;
      break;
    }
  }
  return n_found;
}

}  // namespace npumoe
