// SPDX-License-Identifier: Apache-2.0
#include "format/bpe.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace npumoe {
namespace {

constexpr uint32_t kNoRank = UINT32_MAX;
constexpr uint32_t kEnd = UINT32_MAX;

// Up to this many symbols, scanning for the least rank beats a heap. measured with runs of English letters and Qwen3's
// merges, AVX-512 Xeon: 191 against 230 ns a byte at 128 letters, equal near 200.
constexpr size_t kScanSymbols = 128;

uint64_t PairOf(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// True when `a` must come out of the heap after `b`.
bool ComesLater(const MergeScratch::Candidate& a, const MergeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

void ScanMerges(const MergeTable& table, std::vector<int32_t>* symbols, MergeScratch* scratch) {
  std::vector<int32_t>& s = *symbols;
  std::vector<uint32_t>& ranks = scratch->ranks;   // of the pair (i, i + 1)
  std::vector<int32_t>& merged = scratch->merged;  // what that pair becomes
  size_t n = s.size();
  ranks.resize(n);
  merged.resize(n);
  const auto look_up = [&](size_t i) {
    const Merge* const merge = table.Find(s[i], s[i + 1]);
    ranks[i] = merge != nullptr ? merge->rank : kNoRank;
    merged[i] = merge != nullptr ? merge->merged : -1;
  };
  for (size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    const auto least = std::min_element(ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(n - 1));
    if (*least == kNoRank) break;
    const auto at = static_cast<size_t>(least - ranks.begin());
    s[at] = merged[at];
    for (size_t i = at + 1; i + 1 < n; ++i) {
      s[i] = s[i + 1];
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    --n;
    if (at > 0) look_up(at - 1);
    if (at + 1 < n) look_up(at);
  }
  s.resize(n);
}

void HeapMerges(const MergeTable& table, std::vector<int32_t>* symbols, MergeScratch* scratch) {
  std::vector<MergeScratch::Node>& nodes = scratch->nodes;
  std::vector<MergeScratch::Candidate>& heap = scratch->heap;
  const size_t n = symbols->size();
  NM_CHECK(n < kEnd);
  nodes.resize(n);
  heap.clear();
  for (size_t i = 0; i < n; ++i) {
    nodes[i] = {(*symbols)[i], i == 0 ? kEnd : static_cast<uint32_t>(i - 1),
                i + 1 == n ? kEnd : static_cast<uint32_t>(i + 1)};
  }
  const auto candidate = [&](uint32_t position) {
    const uint32_t next = nodes[position].next;
    if (next == kEnd) return false;
    const Merge* const merge = table.Find(nodes[position].symbol, nodes[next].symbol);
    if (merge == nullptr) return false;
    heap.push_back({merge->rank, position, nodes[position].symbol, nodes[next].symbol, merge->merged});
    return true;
  };
  for (uint32_t i = 0; i + 1 < n; ++i) candidate(i);
  std::make_heap(heap.begin(), heap.end(), ComesLater);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), ComesLater);
    const MergeScratch::Candidate top = heap.back();
    heap.pop_back();
    MergeScratch::Node& left = nodes[top.position];
    // A candidate is stale when either side has changed since it was made; a swallowed node holds -1.
    if (left.symbol != top.left || left.next == kEnd || nodes[left.next].symbol != top.right) continue;
    MergeScratch::Node& right = nodes[left.next];
    left.symbol = top.merged;
    right.symbol = -1;
    left.next = right.next;
    if (left.next != kEnd) nodes[left.next].previous = top.position;
    if (left.previous != kEnd && candidate(left.previous)) std::push_heap(heap.begin(), heap.end(), ComesLater);
    if (candidate(top.position)) std::push_heap(heap.begin(), heap.end(), ComesLater);
  }
  symbols->clear();
  for (uint32_t i = 0; i != kEnd; i = nodes[i].next) symbols->push_back(nodes[i].symbol);
}

}  // namespace

void MergeTable::Reserve(size_t n_merges) {
  slots_.assign(std::bit_ceil(std::max<size_t>(n_merges * 2, 2)), Merge{});
  mask_ = slots_.size() - 1;
  size_ = 0;
}

size_t MergeTable::SlotOf(uint64_t pair) const {
  // Multiplication by 2^64 / golden ratio; the high half mixes both ids.
  uint64_t hash = pair * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  size_t slot = hash & mask_;
  while (slots_[slot].merged >= 0 && slots_[slot].pair != pair) slot = (slot + 1) & mask_;
  return slot;
}

bool MergeTable::Insert(int32_t left, int32_t right, uint32_t rank, int32_t merged) {
  NM_CHECK(left >= 0 && right >= 0 && merged >= 0 && rank != kNoRank && (size_ + 1) * 2 <= slots_.size());
  const uint64_t pair = PairOf(left, right);
  Merge& slot = slots_[SlotOf(pair)];
  if (slot.merged >= 0) return false;
  slot = {pair, rank, merged};
  ++size_;
  return true;
}

const Merge* MergeTable::Find(int32_t left, int32_t right) const {
  if (left < 0 || right < 0 || size_ == 0) return nullptr;
  const Merge& slot = slots_[SlotOf(PairOf(left, right))];
  return slot.merged >= 0 ? &slot : nullptr;
}

void ApplyMerges(const MergeTable& table, std::vector<int32_t>* symbols, MergeScratch* scratch) {
  if (symbols->size() < 2) return;
  if (symbols->size() <= kScanSymbols)
    ScanMerges(table, symbols, scratch);
  else
    HeapMerges(table, symbols, scratch);
}

}  // namespace npumoe
