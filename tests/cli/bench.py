# SPDX-License-Identifier: Apache-2.0
"""npumoe bench."""
import csv
import json

from harness import Case


class Bench(Case):
    """Needs a release build: others refuse to measure, and that is tested instead."""

    def setUp(self):
        self.debug = ", debug)" in self.ok("--version").text()

    def bench(self, *args):
        return self.ok("bench", self.model, "-r", "2", *args).text()

    def test_only_release_builds_measure(self):
        if self.debug:
            self.fails(1, "debug checks", "bench", self.model)
        else:
            self.ok("bench", self.model, "-p", "8", "-n", "0", "-r", "1")

    def test_the_type_of_the_cache_is_shown_where_it_is_not_the_default(self):
        if self.debug:
            return
        flags = ["-p", "8", "-n", "4", "-ctk", "q8_0", "-ctv", "q8_0"]
        head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in self.bench(*flags).splitlines()]
        self.assertEqual(head[5:9], ["type_k", "type_v", "test", "t/s"])
        self.assertEqual([row[5:8] for row in rows[:2]], [["q8_0", "q8_0", "pp8"], ["q8_0", "q8_0", "tg4"]])
        self.assertEqual({row["type_k"] for row in json.loads(self.bench(*flags, "--json"))}, {"q8_0"})

    def test_markdown_table(self):
        if self.debug:
            return
        lines = self.bench("-p", "16,8", "-n", "4", "-t", "1").splitlines()
        self.assertEqual([cell.strip() for cell in lines[0].split("|")[1:-1]],
                         ["model", "size", "params", "backend", "threads", "test", "t/s"])
        self.assertRegex(lines[1], r"^\|[-:| ]+\|$")
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:5]]
        self.assertEqual([row[5] for row in rows], ["pp16", "pp8", "tg4"])
        self.assertEqual({row[4] for row in rows}, {"1"})
        for row in rows:
            self.assertRegex(row[6], r"^[\d.]+ ± [\d.]+$")
        self.assertEqual(lines[5], "")
        self.assertRegex(lines[6], r"^build: \S+ \(\d+\.\d+\.\d+\)$")
        self.assertRegex(lines[7], r"^machine: .+ real time$")
        self.assertRegex(lines[8], r"^check: logits finite")
        self.assertEqual(len({len(line) for line in lines[:5]}), 1)

    def test_json_agrees_with_itself(self):
        if self.debug:
            return
        rows = json.loads(self.bench("-p", "8", "-n", "0", "-pg", "8,4", "-d", "0,16", "--json"))
        self.assertEqual([(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in rows],
                         [(8, 0, 0), (8, 4, 0), (8, 0, 16), (8, 4, 16)])
        for row in rows:
            n = row["n_prompt"] + row["n_gen"]
            self.assertEqual(len(row["samples_ns"]), 2)
            self.assertAlmostEqual(row["avg_ts"], sum(n * 1e9 / ns for ns in row["samples_ns"]) / 2, delta=1e-6 * row["avg_ts"])
            self.assertEqual(row["model_type"].split()[0], "qwen3moe")
            self.assertLess(row["check_kl"], 1e-3)
            self.assertRegex(row["test_time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")

    def test_other_formats(self):
        if self.debug:
            return
        lines = self.bench("-p", "8", "-n", "2", "-o", "jsonl").splitlines()
        self.assertEqual([json.loads(line)["n_gen"] for line in lines], [0, 2])
        rows = list(csv.DictReader(self.bench("-p", "8", "-n", "2", "-o", "csv").splitlines()))
        self.assertEqual([(row["n_prompt"], row["n_gen"]) for row in rows], [("8", "0"), ("0", "2")])
        self.assertGreater(float(rows[0]["avg_ts"]), 0)
