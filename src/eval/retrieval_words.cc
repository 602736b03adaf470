// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval_words.h"

#include <array>
#include <set>
#include <utility>

#include "base/check.h"

namespace npumoe {
namespace {

constexpr std::array kNouns = std::to_array<std::string_view>(
    {"apple",  "arrow",  "basket", "beach",   "bell",     "bird",     "blanket", "boat",    "book",    "bottle",
     "branch", "bread",  "bridge", "brush",   "bucket",   "butter",   "button",  "candle",  "castle",  "cattle",
     "chain",  "chair",  "cheese", "church",  "circle",   "clock",    "cloth",   "cloud",   "coal",    "coat",
     "copper", "corn",   "cotton", "cousin",  "cradle",   "crown",    "curtain", "desk",    "diamond", "doctor",
     "donkey", "door",   "dragon", "dress",   "eagle",    "engine",   "farmer",  "feather", "fence",   "field",
     "finger", "flag",   "flower", "forest",  "fountain", "fruit",    "garden",  "gate",    "giant",   "glass",
     "glove",  "gold",   "grain",  "grass",   "guest",    "guitar",   "hammer",  "harbour", "harvest", "helmet",
     "honey",  "horse",  "hotel",  "island",  "jacket",   "jewel",    "judge",   "kettle",  "kitchen", "kitten",
     "knife",  "ladder", "lamp",   "lemon",   "letter",   "library",  "lion",    "machine", "marble",  "market",
     "meadow", "medal",  "melon",  "mirror",  "monkey",   "mountain", "music",   "nail",    "needle",  "nest",
     "ocean",  "onion",  "orange", "oven",    "owl",      "paint",    "palace",  "paper",   "parcel",  "pearl",
     "pencil", "pepper", "piano",  "picture", "pillow",   "planet",   "plate",   "pocket",  "potato",  "prince",
     "pump",   "puzzle", "queen",  "rabbit",  "railway",  "ribbon",   "ring",    "roof",    "rope",    "rose",
     "saddle", "sailor", "salt",   "school",  "shadow",   "shell",    "ship",    "shirt",   "shovel",  "silk",
     "silver", "singer", "snake",  "soldier", "spider",   "spoon",    "square",  "stable",  "statue",  "stone",
     "stove",  "sugar",  "summer", "sword",   "table",    "tailor",   "temple",  "theatre", "thread",  "ticket",
     "tiger",  "timber", "tower",  "trumpet", "tunnel",   "turtle",   "uncle",   "valley",  "velvet",  "village",
     "violin", "wagon",  "wallet", "wheel",   "whistle",  "window",   "winter",  "witness", "wolf",    "wool",
     "wrist",  "yard"});

constexpr std::array kWho =
    std::to_array<std::string_view>({"the old miller", "a young teacher", "the tired traveller", "her brother",
                                     "the baker", "a quiet girl", "the captain", "his neighbour", "the gardener",
                                     "my aunt", "a stranger", "the two children", "the postman", "an early guest"});
constexpr std::array kDid = std::to_array<std::string_view>(
    {"walked slowly", "waited a while", "sat down", "looked around", "sang softly", "rested a little", "told a story",
     "stood still", "turned back", "had breakfast", "slept well", "went on"});
constexpr std::array kWhere = std::to_array<std::string_view>(
    {"beside the river", "under the tall trees", "near the mill", "in front of the house", "at the end of the road",
     "behind the hill", "on the wet sand", "by the fire", "in the warm room", "across the street"});
constexpr std::array kWhen = std::to_array<std::string_view>(
    {"before the rain began", "while the sun went down", "after the long day", "until it was dark",
     "when all was quiet", "as the wind grew stronger", "early in the morning", "and nobody said a word",
     "because there was still time", "as on every other day"});

template <size_t n>
std::string_view Pick(Random& random, const std::array<std::string_view, n>& from) {
  return from[random.Below(n)];
}

}  // namespace

std::span<const std::string_view> Nouns() { return kNouns; }

std::string FillerLine(Random& random) {
  // Named one after another: the order in which arguments are evaluated is the compiler's.
  const std::string_view who = Pick(random, kWho), did = Pick(random, kDid);
  const std::string_view where = Pick(random, kWhere), when = Pick(random, kWhen);
  std::string line = fmt::format("{} {} {} {}.", who, did, where, when);
  line[0] = static_cast<char>(line[0] - 'a' + 'A');
  return line;
}

std::vector<std::string> MadeUpWords(Random& random, size_t n) {
  constexpr std::string_view kConsonants = "bdfgklmnprstvz", kVowels = "aeiou";
  NM_CHECK(n <= 2000);  // of 4,900 with two syllables
  std::vector<std::string> words;
  std::set<std::string> seen;
  while (words.size() < n) {
    std::string word;
    const size_t n_syllables = 2 + random.Below(2);
    for (size_t i = 0; i < n_syllables; ++i) {
      word += kConsonants[random.Below(kConsonants.size())];
      word += kVowels[random.Below(kVowels.size())];
    }
    if (seen.insert(word).second) words.push_back(std::move(word));
  }
  return words;
}

std::vector<std::string> Draw(Random& random, std::span<const std::string_view> words, size_t n) {
  NM_CHECK(n <= words.size());
  std::vector<std::string_view> left(words.begin(), words.end());
  for (size_t i = 0; i < n; ++i) std::swap(left[i], left[i + random.Below(left.size() - i)]);
  return {left.begin(), left.begin() + static_cast<ptrdiff_t>(n)};
}

}  // namespace npumoe
