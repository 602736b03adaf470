// SPDX-License-Identifier: Apache-2.0
// Byte-pair merging: a table of ranked pairs, applied lowest rank first, leftmost first among equals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace npumoe {

// Two neighbours `left`, `right` become `merged`. Symbols are token ids, or ids above them for texts that occur in
// merges only; negative symbols never merge.
struct Merge {
  uint64_t pair = 0;  // left << 32 | right
  uint32_t rank = 0;
  int32_t merged = -1;  // -1: empty slot
};

// Open-addressing hash table, at most half full. Immutable once filled.
class MergeTable {
 public:
  // Room for `n_merges`; drops what was there.
  void Reserve(size_t n_merges);
  // False if the pair is there already (it then stays as it was). At most n_merges calls may succeed.
  bool Insert(int32_t left, int32_t right, uint32_t rank, int32_t merged);
  // nullptr if the pair does not merge.
  const Merge* Find(int32_t left, int32_t right) const;
  size_t size() const { return size_; }

 private:
  size_t SlotOf(uint64_t pair) const;
  std::vector<Merge> slots_;  // power of two
  uint64_t mask_ = 0;
  size_t size_ = 0;
};

// Buffers of ApplyMerges, reused between calls. One thread at a time.
struct MergeScratch {
  struct Node {
    int32_t symbol = -1;
    uint32_t previous = 0, next = 0;
  };
  struct Candidate {
    uint32_t rank = 0, position = 0;
    int32_t left = 0, right = 0, merged = 0;
  };
  std::vector<uint32_t> ranks;
  std::vector<int32_t> merged;
  std::vector<Node> nodes;
  std::vector<Candidate> heap;
};

// Merges `symbols` in place until no neighbours merge. Time n log n in their number, memory linear, no recursion.
void ApplyMerges(const MergeTable& table, std::vector<int32_t>* symbols, MergeScratch* scratch);

}  // namespace npumoe
