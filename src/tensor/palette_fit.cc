// SPDX-License-Identifier: Apache-2.0
#include "tensor/palette_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

constexpr size_t kHalves = 65536;
constexpr double kNever = std::numeric_limits<double>::infinity();
// Lloyd's iterations behind the search: after so few nothing moves that is worth the time.
constexpr int kRefinements = 10;
// Pieces times entries within which a cut may lie from where equal shares would put it. Pieces are equal shares of what
// makes many clusters near to optimal (see Pieces): 256 of them stay close to it, and wider bands gave the same cuts on
// all data measured; 16 of outliers do not.
constexpr size_t kBandWork = size_t{1} << 14;

// The fp16 value at `place` among all in ascending order; the two zeros are neighbours.
uint16_t HalfAt(uint32_t place) { return static_cast<uint16_t>(place < 0x8000u ? 0xffffu - place : place - 0x8000u); }

}  // namespace

PaletteFit::PaletteFit(size_t bits) : bits_(bits), counts_(kHalves), index_(kHalves) {
  NM_CHECK(bits >= 1 && bits <= 8);
}

void PaletteFit::Clear() { std::fill(counts_.begin(), counts_.end(), 0); }

void PaletteFit::Add(std::span<const uint16_t> halves) {
  for (const uint16_t half : halves) ++counts_[half];
}

void PaletteFit::CollectAtoms() {
  values_.clear();
  n_.assign(1, 0), sum_.assign(1, 0), squares_.assign(1, 0);
  for (uint32_t place = 0; place < kHalves; ++place) {
    const uint16_t half = HalfAt(place);
    if (counts_[half] == 0) continue;
    const double value = static_cast<double>(F16ToF32(half)), n = counts_[half];
    NM_DCHECK(std::isfinite(value));
    if (!values_.empty() && values_.back() == value) {  // the other zero
      n_.back() += n;
      continue;
    }
    values_.push_back(value);
    n_.push_back(n_.back() + n);
    sum_.push_back(sum_.back() + n * value);
    squares_.push_back(squares_.back() + n * value * value);
  }
}

double PaletteFit::Mean(uint32_t begin, uint32_t end) const {
  return (sum_[end] - sum_[begin]) / (n_[end] - n_[begin]);
}

// Sum of squared distances of atoms [begin, end) to their mean.
double PaletteFit::Cost(uint32_t begin, uint32_t end) const {
  const double sum = sum_[end] - sum_[begin];
  return squares_[end] - squares_[begin] - sum * sum / (n_[end] - n_[begin]);
}

// At most PieceCount() runs of atoms, as their first atoms and the end. With many entries the best table has entries in
// proportion to the cube root of the density (Panter and Dite), so the pieces are equal shares of its integral.
std::vector<uint32_t> PaletteFit::Pieces() const {
  const auto atoms = static_cast<uint32_t>(values_.size());
  std::vector<uint32_t> cuts;
  const size_t pieces = PieceCount();
  if (atoms <= pieces) {
    for (uint32_t atom = 0; atom <= atoms; ++atom) cuts.push_back(atom);
    return cuts;
  }
  std::vector<double> share(atoms + 1, 0);  // of the atoms before
  for (uint32_t i = 0; i < atoms; ++i) {
    const double below = values_[i] - values_[i > 0 ? i - 1 : i],
                 above = values_[i + 1 < atoms ? i + 1 : i] - values_[i];
    const double width = i == 0 ? above : i + 1 == atoms ? below : (below + above) / 2;
    share[i + 1] = share[i] + std::cbrt((n_[i + 1] - n_[i]) * width * width);
  }
  cuts.push_back(0);
  for (size_t piece = 1; piece < pieces; ++piece) {
    const double wanted = share[atoms] * static_cast<double>(piece) / static_cast<double>(pieces);
    const auto at = std::lower_bound(share.begin() + cuts.back() + 1, share.end(), wanted) - share.begin();
    // An atom at least for this piece and for each one behind it.
    cuts.push_back(std::min(static_cast<uint32_t>(at), atoms - static_cast<uint32_t>(pieces - piece)));
  }
  cuts.push_back(atoms);
  return cuts;
}

// The cheapest cut of the pieces into 2^bits clusters, by dynamic programming; a row of it by divide and conquer, since
// the best last cut moves up with the end. Needs more pieces than clusters.
std::vector<uint32_t> PaletteFit::Search(std::span<const uint32_t> pieces) {
  const size_t n = pieces.size() - 1, entries = size_t{1} << bits_;
  // A small problem is solved without the band.
  const size_t band = n < PieceCount() ? n : kBandWork / entries;
  before_.assign(n + 1, kNever);
  now_.resize(n + 1);
  from_.assign((entries + 1) * (n + 1), 0);
  before_[0] = 0;
  for (size_t entry = 1; entry <= entries; ++entry) {
    std::fill(now_.begin(), now_.end(), kNever);
    uint16_t* const from = from_.data() + entry * (n + 1);
    const auto fill = [&](const auto& self, size_t low, size_t high, size_t first, size_t last) -> void {
      if (low > high) return;
      const size_t end = (low + high) / 2;
      size_t best = first;
      for (size_t begin = first; begin <= std::min(last, end - 1); ++begin) {
        const double cost = before_[begin] + Cost(pieces[begin], pieces[end]);
        if (cost < now_[end]) now_[end] = cost, best = begin;
      }
      from[end] = static_cast<uint16_t>(best);
      if (end > low) self(self, low, end - 1, first, best);
      self(self, end + 1, high, best, last);
    };
    const size_t here = entry * n / entries, there = (entry - 1) * n / entries;
    fill(fill, std::max(entry, here - std::min(here, band)), std::min(n - (entries - entry), here + band),
         std::max(entry - 1, there - std::min(there, band)), std::min(n - 1, there + band));
    std::swap(before_, now_);
  }
  std::vector<uint32_t> cuts(entries + 1);
  for (size_t entry = entries, at = n; entry > 0; --entry) {
    cuts[entry] = pieces[at];
    at = from_[entry * (n + 1) + at];
  }
  return cuts;
}

// Cuts move to the middle between means, at the resolution of atoms.
void PaletteFit::Refine(std::vector<uint32_t>& cuts) const {
  bool moved = true;
  for (int round = 0; round < kRefinements && moved; ++round) {
    moved = false;
    double mean = Mean(cuts[0], cuts[1]);
    for (size_t i = 1; i + 1 < cuts.size(); ++i) {
      const double next = Mean(cuts[i], cuts[i + 1]), middle = (mean + next) / 2;
      mean = next;
      uint32_t at = cuts[i];
      while (at + 1 < cuts[i + 1] && values_[at] < middle) ++at;
      while (at - 1 > cuts[i - 1] && values_[at - 1] >= middle) --at;
      moved = moved || at != cuts[i];
      cuts[i] = at;
    }
  }
}

void PaletteFit::Fit(std::span<uint16_t> table) {
  const size_t entries = size_t{1} << bits_;
  NM_CHECK(table.size() == entries);
  CollectAtoms();
  NM_CHECK(!values_.empty());
  size_t n = 0;
  const auto put = [&](double value) {
    const uint16_t half = F32ToF16(static_cast<float>(value));
    if (n == 0 || half != table[n - 1]) table[n++] = half;  // means of two clusters may round to one value
  };
  if (values_.size() <= entries) {
    for (const double value : values_) put(value);
  } else {
    std::vector<uint32_t> cuts = Search(Pieces());
    Refine(cuts);
    for (size_t i = 0; i < entries; ++i) put(Mean(cuts[i], cuts[i + 1]));
  }
  std::fill(table.begin() + static_cast<ptrdiff_t>(n), table.end(), table[n - 1]);
  // Values up to the middle between two entries belong to the lower one.
  size_t entry = 0;
  const auto value_of = [](uint16_t half) { return static_cast<double>(F16ToF32(half)); };
  for (uint32_t place = 0; place < kHalves; ++place) {
    const uint16_t half = HalfAt(place);
    if (counts_[half] == 0) continue;
    while (entry + 1 < n && value_of(half) > (value_of(table[entry]) + value_of(table[entry + 1])) / 2) ++entry;
    index_[half] = static_cast<uint8_t>(entry);
  }
}

void PaletteFit::Indices(std::span<const uint16_t> halves, uint8_t* out) const {
  for (size_t i = 0; i < halves.size(); ++i) out[i] = index_[halves[i]];
}

}  // namespace npumoe
