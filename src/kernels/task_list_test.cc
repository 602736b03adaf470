// SPDX-License-Identifier: Apache-2.0
#include "kernels/task_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/bf16_strip.h"

namespace npumoe {
namespace {

// A job of m rows for n outputs of k values each; nothing of it is read or written.
MatMulJob JobOf(size_t m, size_t n, size_t k, bool swiglu = false) {
  static float nothing;
  MatMulJob job = {};
  job.x = {&nothing, m, k, k};
  job.y = {&nothing, m, n, n};
  job.w.dtype = DType::kBF16;
  job.w.shape = Shape::Of(n, k);
  job.swiglu = swiglu;
  return job;
}

Panel PanelOf(Path path, size_t job, size_t n_rows) {
  Panel panel = {};
  panel.path = path;
  panel.job = static_cast<uint32_t>(job);
  panel.n_jobs = 1;
  panel.n_rows = static_cast<uint32_t>(n_rows);
  return panel;
}

struct List {
  std::vector<MatMulJob> jobs;
  std::vector<Panel> panels;
  void Add(size_t rows, size_t n = 768, size_t k = 2048, Path path = Path::kBf16, bool swiglu = false) {
    panels.push_back(PanelOf(path, jobs.size(), rows));
    jobs.push_back(JobOf(rows, n, k, swiglu));
  }
};

std::vector<std::vector<uint32_t>> RowsOfGroups(std::span<const Panel> panels) {
  std::vector<std::vector<uint32_t>> groups;
  for (size_t i = 0; i < panels.size(); i += panels[i].n_group) {
    EXPECT_GT(panels[i].n_group, 0u);
    if (panels[i].n_group == 0) break;
    std::vector<uint32_t> rows;
    for (const Panel& p : panels.subspan(i, panels[i].n_group)) rows.push_back(p.n_rows);
    groups.push_back(rows);
  }
  return groups;
}

using Groups = std::vector<std::vector<uint32_t>>;

TEST(PutTogether, FewRowsGoWhereTheFewestWeightsPerRowAreRead) {
  List list;
  for (const size_t rows : {2u, 90u, 5u, 60u, 3u, 90u, 1u}) list.Add(rows);
  PutTogether(list.jobs, list.panels);
  // Weights per row of x when each is placed: 2 goes to the first 90 (1/90, 1/60, 1/90), 5 to the other (2/92, 1/60,
  // 1/90), 3 to the 60 (2/92, 1/60, 2/95), 1 to the second 90 (2/92, 2/63, 2/95).
  EXPECT_EQ(RowsOfGroups(list.panels), (Groups{{90, 2}, {60, 3}, {90, 5, 1}}));
}

TEST(PutTogether, NoMoreThanAGroupHolds) {
  List rows, panels;
  for (const size_t m : {96u, 15u, 15u, 15u, 15u}) rows.Add(m);  // 141 without the last, 156 with it
  PutTogether(rows.jobs, rows.panels);
  EXPECT_EQ(RowsOfGroups(rows.panels), (Groups{{96, 15, 15, 15}, {15}}));
  panels.Add(40);
  for (size_t i = 0; i < kMaxBf16Group; ++i) panels.Add(1);
  PutTogether(panels.jobs, panels.panels);
  EXPECT_EQ(RowsOfGroups(panels.panels), (Groups{std::vector<uint32_t>{40, 1, 1, 1, 1, 1, 1, 1}, {1}}));
}

TEST(PutTogether, OnlyWhatIsAlikeAndOnlyWhereTheKernelKnowsGroups) {
  List list;
  list.Add(64);
  list.Add(4, 768, 1024);                     // another K
  list.Add(4, 512);                           // another number of weight rows
  list.Add(4, 768, 2048, Path::kInteger);     // another kernel
  list.Add(4, 768, 2048, Path::kBf16, true);  // ends in SwiGLU
  list.Add(kBf16FewRows + 1);                 // not few
  PutTogether(list.jobs, list.panels);
  EXPECT_EQ(RowsOfGroups(list.panels), (Groups{{64}, {4}, {4}, {4}, {4}, {16}}));
  List integers;
  for (const size_t rows : {64u, 4u}) integers.Add(rows, 768, 2048, Path::kInteger);
  PutTogether(integers.jobs, integers.panels);
  EXPECT_EQ(RowsOfGroups(integers.panels), (Groups{{64}, {4}}));
  std::span<Panel> none;
  PutTogether({}, none);
}

// Every row of x meets every weight row of every job once, whatever the kernels of this machine are.
TEST(TaskList, TasksCoverEveryOutputOnce) {
  for (const size_t n_threads : {1u, 2u, 64u}) {
    std::vector<MatMulJob> jobs;
    for (size_t i = 0; i < 60; ++i) {
      const size_t m = i % 9 == 4 ? 0 : i % 5 == 0 ? 30 + 7 * i : i % 13;
      jobs.push_back(JobOf(m, 200, 256, /*swiglu=*/true));
      jobs.push_back(JobOf(m, 200, 256));
      jobs.push_back(JobOf(m, 60 + i, 768));
      // Only gate and up have the same activations.
      for (size_t j = 0; j < 3; ++j) {
        jobs[3 * i + j].w.dtype = i % 3 == 0 ? DType::kQ8_0 : DType::kBF16;
        jobs[3 * i + j].rows = reinterpret_cast<const uint32_t*>(16 * (1 + 2 * i + j / 2));
      }
    }
    TaskList list;
    list.Build(jobs, Activations::k8Bits, n_threads);
    std::vector<std::vector<int>> seen;  // [jobs][row of x, weight row]
    for (const MatMulJob& job : jobs) seen.emplace_back(job.x.rows * job.y.cols);
    size_t n_tasks = 0;
    for (size_t first = 0; n_tasks < list.n_tasks(); first += list.Group(first).size()) {
      const std::span<const Panel> group = list.Group(first);
      ASSERT_EQ(group[0].first_task, n_tasks);
      ASSERT_GT(group[0].n_strips, 0u);
      n_tasks += group[0].n_strips;
      for (const Panel& panel : group) {
        ASSERT_EQ(panel.n_strips, group[0].n_strips);
        for (size_t i = 0; i < panel.n_jobs; ++i) {
          for (size_t strip = 0; strip < panel.n_strips; ++strip) {
            const StripArgs args = TaskList::StripOf(jobs, panel, i, strip);
            ASSERT_EQ(args.rows, jobs[panel.job + i].rows + panel.first_row);
            for (size_t row = 0; row < args.x.rows; ++row) {
              int* const of_row = &seen[panel.job + i][(panel.first_row + row) * args.w.shape[0]];
              for (size_t w = 0; w < args.n_rows; ++w) ++of_row[args.first + w];
            }
          }
        }
      }
    }
    for (const std::vector<int>& times : seen) EXPECT_EQ(std::ranges::count(times, 1), times.size());
  }
}

}  // namespace
}  // namespace npumoe
