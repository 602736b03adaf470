// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/attention_task.h"
#include "kernels/simd_targets.h"
#include "tensor/blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h: code that is compiled once per target.
#include "hwy/highway.h"
#include "kernels/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

void StoreRow(DType dtype, const float* from, size_t n, std::byte* to) {
  if (dtype == DType::kF16) return FloatToHalf(from, n, reinterpret_cast<uint16_t*>(to));
  if (dtype == DType::kQ8_0) return StoreBlocks(from, n, reinterpret_cast<BlockQ8_0*>(to));
  std::memcpy(to, from, n * sizeof(float));
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace npumoe {

HWY_EXPORT(StoreRow);
HWY_EXPORT(PackQueries);
HWY_EXPORT(ClearState);
HWY_EXPORT(AttendSplit);
HWY_EXPORT(MergeState);
HWY_EXPORT(WriteOut);

namespace {

bool IsCacheType(DType dtype, size_t head_dim) {
  return dtype == DType::kF32 || dtype == DType::kF16 || (dtype == DType::kQ8_0 && head_dim % kBlockElems == 0);
}

}  // namespace

void KvView::Store(size_t position, const float* k, const float* v) const {
  NM_DCHECK(position < capacity && IsCacheType(dtype, head_dim));
  const size_t bytes = row_bytes();
  for (size_t head = 0; head < n_kv_heads; ++head) {
    const size_t to = (head * capacity + position) * bytes, from = head * head_dim;
    HWY_DYNAMIC_DISPATCH(StoreRow)(dtype, k + from, head_dim, keys + to);
    HWY_DYNAMIC_DISPATCH(StoreRow)(dtype, v + from, head_dim, values + to);
  }
}

namespace {

// Partial results kept at once when the keys of a task are spread over threads, per thread.
constexpr size_t kPartsPerThread = 4;
// With fewer tasks than this per thread, splits of the keys are spread too: the last task to end would else leave
// the other threads idle.
constexpr size_t kTasksPerThread = 4;

// The chunk as tasks: kv heads times blocks of rows.
struct TaskList {
  AttentionTask base;  // kv_head, first_row and n_rows are set by At
  size_t n_kv_heads = 0, n_rows = 0, n_blocks = 0;

  size_t size() const { return n_kv_heads * n_blocks; }
  // Later positions see more keys: the last block comes first, so that short tasks fill up the end.
  AttentionTask At(size_t index) const {
    AttentionTask task = base;
    task.kv_head = index % n_kv_heads;
    task.first_row = (n_blocks - 1 - index / n_kv_heads) * kMaxTaskRows;
    task.n_rows = std::min(kMaxTaskRows, n_rows - task.first_row);
    return task;
  }
};

// One split of one task.
struct SplitUnit {
  AttentionTask task;
  size_t split = 0;
  bool first = false, last = false;  // of the task
};

size_t FirstSplit(const AttentionTask& task) { return task.FirstSeen(0) / kSplitPositions; }
size_t EndSplit(const AttentionTask& task) { return task.Position(task.n_rows - 1) / kSplitPositions + 1; }

}  // namespace

struct Attention::Impl {
  ThreadPool& pool;
  size_t max_dim_pad;
  std::vector<float> memory;
  float* floats = nullptr;  // inside memory, aligned: scratch of each thread, total of each thread, parts

  std::vector<SplitUnit> units;  // [n_parts]

  size_t n_parts() const { return units.size(); }
  AttentionScratch Scratch(size_t thread, size_t dim_pad) {
    return AttentionScratch::At(floats + thread * AttentionScratch::Floats(max_dim_pad), dim_pad);
  }
  AttentionState State(size_t index) {
    float* const states = floats + pool.n_threads() * AttentionScratch::Floats(max_dim_pad);
    return AttentionState::At(states + index * AttentionState::Floats(max_dim_pad));
  }
  AttentionState Total(size_t thread) { return State(thread); }
  AttentionState Part(size_t part) { return State(pool.n_threads() + part); }

  void RunTasks(const TaskList& tasks);
  void RunSplits(const TaskList& tasks);
  void RunUnits(size_t n_units);
};

// Each thread takes whole tasks.
void Attention::Impl::RunTasks(const TaskList& tasks) {
  pool.ParallelFor(tasks.size(), [&](size_t index, size_t thread) {
    const AttentionTask task = tasks.At(index);
    const AttentionScratch scratch = Scratch(thread, task.dim_pad());
    const AttentionState part = Part(thread), total = Total(thread);
    HWY_DYNAMIC_DISPATCH(PackQueries)(task, scratch);
    HWY_DYNAMIC_DISPATCH(AttendSplit)(task, FirstSplit(task), scratch, total);
    for (size_t split = FirstSplit(task) + 1; split < EndSplit(task); ++split) {
      HWY_DYNAMIC_DISPATCH(AttendSplit)(task, split, scratch, part);
      HWY_DYNAMIC_DISPATCH(MergeState)(task, part, total);
    }
    HWY_DYNAMIC_DISPATCH(WriteOut)(task, scratch, total);
  });
}

// Threads share the splits of all tasks, n_parts() at a time.
void Attention::Impl::RunSplits(const TaskList& tasks) {
  size_t n_units = 0;
  for (size_t index = 0; index < tasks.size(); ++index) {
    const AttentionTask task = tasks.At(index);
    const size_t first = FirstSplit(task), end = EndSplit(task);
    for (size_t split = first; split < end; ++split) {
      units[n_units++] = {.task = task, .split = split, .first = split == first, .last = split + 1 == end};
      if (n_units == n_parts()) {
        RunUnits(n_units);
        n_units = 0;
      }
    }
  }
  RunUnits(n_units);
}

// The caller merges in ascending order. Total(0) holds the task whose splits are not all in yet, from call to call.
void Attention::Impl::RunUnits(size_t n_units) {
  pool.ParallelFor(n_units, [&](size_t index, size_t thread) {
    const SplitUnit& unit = units[index];
    const AttentionScratch scratch = Scratch(thread, unit.task.dim_pad());
    HWY_DYNAMIC_DISPATCH(PackQueries)(unit.task, scratch);
    HWY_DYNAMIC_DISPATCH(AttendSplit)(unit.task, unit.split, scratch, Part(index));
    if (unit.first && unit.last) HWY_DYNAMIC_DISPATCH(WriteOut)(unit.task, scratch, Part(index));
  });
  for (size_t index = 0; index < n_units; ++index) {
    const SplitUnit& unit = units[index];
    if (unit.first && unit.last) continue;
    if (unit.first) HWY_DYNAMIC_DISPATCH(ClearState)(unit.task, Total(0));
    HWY_DYNAMIC_DISPATCH(MergeState)(unit.task, Part(index), Total(0));
    if (unit.last) HWY_DYNAMIC_DISPATCH(WriteOut)(unit.task, Scratch(0, unit.task.dim_pad()), Total(0));
  }
}

Attention::Attention(ThreadPool& pool, size_t max_head_dim)
    : impl_(new Impl{.pool = pool,
                     .max_dim_pad = RoundUp(max_head_dim, kPad),
                     .memory = {},
                     .units = std::vector<SplitUnit>(kPartsPerThread * pool.n_threads())}) {
  const size_t n_threads = pool.n_threads();
  const size_t n_floats = n_threads * AttentionScratch::Floats(impl_->max_dim_pad) +
                          (n_threads + impl_->n_parts()) * AttentionState::Floats(impl_->max_dim_pad);
  impl_->memory.resize(n_floats + kLineFloats);
  const size_t past_line = reinterpret_cast<uintptr_t>(impl_->memory.data()) / sizeof(float) % kLineFloats;
  impl_->floats = impl_->memory.data() + (kLineFloats - past_line);
}

Attention::~Attention() = default;

size_t Attention::scratch_bytes() const {
  return impl_->memory.size() * sizeof(float) + impl_->units.size() * sizeof(SplitUnit);
}

void Attention::Run(const AttentionParams& params, ConstMatView q, const KvView& kv, size_t first_position,
                    MatView out) {
  if (q.rows == 0) return;
  NM_CHECK(IsCacheType(kv.dtype, kv.head_dim));
  NM_CHECK(kv.n_kv_heads != 0 && params.n_heads % kv.n_kv_heads == 0 && kv.head_dim != 0);
  NM_CHECK(RoundUp(kv.head_dim, kPad) <= impl_->max_dim_pad);
  NM_CHECK(first_position + q.rows <= kv.capacity);
  NM_CHECK(q.cols == params.n_heads * kv.head_dim && out.cols == q.cols && out.rows == q.rows);
  const size_t group = params.n_heads / kv.n_kv_heads;
  TaskList tasks;
  tasks.base = {.params = &params, .kv = &kv, .q = q, .out = out, .first_position = first_position, .group = group};
  tasks.n_kv_heads = kv.n_kv_heads;
  tasks.n_rows = q.rows * group;
  tasks.n_blocks = (tasks.n_rows + kMaxTaskRows - 1) / kMaxTaskRows;
  if (tasks.size() >= kTasksPerThread * impl_->pool.n_threads() || impl_->pool.n_threads() == 1) {
    impl_->RunTasks(tasks);
  } else {
    impl_->RunSplits(tasks);
  }
}

}  // namespace npumoe
#endif  // HWY_ONCE
