// SPDX-License-Identifier: Apache-2.0
// How the products of one call of MatMul are cut into tasks, and which of them a task does in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/activations.h"
#include "kernels/matmul.h"
#include "kernels/strip.h"

namespace npumoe {

// Weight rows of a task that ends in SwiGLU, at most: what it multiplies by stays in a buffer of the thread's, 400 KiB
// with 96 rows of x, for a second-level cache of 1 MiB.
inline constexpr size_t kMaxSwiGluStripRows = 1024;

// Which kernel computes a product.
enum class Path { kF32, kBlas, kBf16, kInteger };
Path PathOf(const MatMulJob& job, Activations activations);

// Whether b is done strip by strip with a: gate and up, keys and values.
bool SameWork(const MatMulJob& a, const MatMulJob& b);

// Some rows of x of a job and of those after it that are done strip by strip with it.
struct Panel {
  Path path;
  uint32_t job, n_jobs;           // the jobs [job, job + n_jobs) have the same x and weights of one shape and type
  uint32_t first_row, n_rows;     // of x
  uint32_t strip_rows, n_strips;  // how the weights are cut
  // Panels of a group stand side by side, and a task does the same strip of all of them in turn.
  uint32_t group = 0;  // its number, ascending
  // What the first panel of a group knows of it: how many panels, their rows of x, the number of its first task.
  uint32_t n_group = 1, group_rows = 0, first_task = 0;
};

// Puts panels of few rows into groups with panels of many, where the kernel knows groups (bf16_strip.h), and so changes
// their order. Few rows take as long as their weights come from memory, with many rows memory is idle; the groups come
// to read about as many weights per row of x as each other.
void PutTogether(std::span<const MatMulJob> jobs, std::span<Panel> panels);

// A task is one strip of a panel, or of each panel of a group.
class TaskList {
 public:
  TaskList();

  // Cuts finer until each of n_threads has some tasks. Allocates only where the list is longer than any before.
  void Build(std::span<const MatMulJob> jobs, Activations activations, size_t n_threads);

  size_t n_tasks() const { return n_tasks_; }

  // The group that begins with panel `first`; the next one begins with panel first + size. Its tasks are first_task and
  // as many as it has strips.
  std::span<const Panel> Group(size_t first) const { return {&panels_[first], panels_[first].n_group}; }

  // Strip `strip` of the panel's job `i`, without scratch.
  static StripArgs StripOf(std::span<const MatMulJob> jobs, const Panel& panel, size_t i, size_t strip);

 private:
  void Cut(std::span<const MatMulJob> jobs, Activations activations, size_t fineness);

  std::vector<Panel> panels_;
  size_t n_tasks_ = 0;
};

}  // namespace npumoe
