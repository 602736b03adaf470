# SPDX-License-Identifier: Apache-2.0
"""npumoe eval: perplexity, multiple choice, retrieval, logs that runs go on after."""
import json
import os
import re
import signal
import subprocess

from harness import NPUMOE, SECONDS, Case, Running, clean_environment, read_until

NPU = ["--npu", "sim:m2-max", "--placement", "tiers+groups", "--npu-chunk", "64"]
WORDS = "the sea was calm and nobody on the old boat said a word about it".split()


def hellaswag(n):
    lines = []
    for i in range(n):
        words = [WORDS[(i * 5 + k * k) % len(WORDS)] for k in range(12)]
        lines += [" ".join(words[:6]), str(i % 4)] + [" ".join(words[k + 2:k + 5 + i % 3]) + "." for k in range(4)]
    return ("\n".join(lines) + "\n").encode()


def boolq(n):
    rows = [{"query": f"Passage: {' '.join(WORDS[:i % 9 + 3])}.\nQuestion: is it {WORDS[i % 15]}?",
             "choices": ["no", "yes"], "gold": i % 2} for i in range(n)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


class Eval(Case):
    def setUp(self):
        self.items = self.write("items.txt", hellaswag(8))
        self.task = ["eval", self.model, "--task", "hellaswag", "--data", self.items]

    def report(self, *args, **options):
        return json.loads(self.ok(*args, "--json", **options).text())

    def records(self, path):
        return [json.loads(line) for line in path.read_text().splitlines()[1:]]

    def test_shares_follow_from_the_log(self):
        log = self.dir / "shares.jsonl"
        report = self.report(*self.task, "--resume", log)
        self.assertEqual((report["n_items"], report["n_wanted"], report["n_resumed"], report["device"]), (8, 8, 0, "CPU"))
        records = self.records(log)
        self.assertEqual([record["item"] for record in records], list(range(8)))
        for name, divisor in [("accuracy", None), ("accuracy per character", "n_characters"), ("accuracy per token", "n_tokens")]:
            right = 0
            for record in records:
                scores = [p / (record[divisor][i] if divisor else 1) for i, p in enumerate(record["log_probs"])]
                right += scores.index(max(scores)) == record["gold"]
            share = report["scores"][name]
            self.assertEqual(share["value"], right / 8)
            self.assertTrue(0 <= share["low"] <= share["value"] <= share["high"] <= 1)
        self.assertNotIn("same_answers", report)
        text = self.ok(*self.task).text()
        self.assertRegex(text, r"(?m)^accuracy per character [\d.]+ % \[[\d.]+, [\d.]+\]$")
        self.assertRegex(text, r"(?m)^device +CPU$")
        self.assertNotIn("simulated", text)

    def test_jsonl_tasks_and_shots(self):
        data = self.write("boolq.jsonl", boolq(6))
        for task in ("boolq", "piqa"):
            report = self.report("eval", self.model, "--task", task, "-f", data, "--shots", "2", "--limit", "4")
            self.assertEqual((report["n_items"], report["n_shots"]), (4, 2))
        piped = self.report("eval", self.model, "--task", "boolq", "--data", "-", stdin=boolq(6))
        self.assertEqual(piped["n_items"], 6)
        self.fails(1, "6 shots, wanted at most 5", "eval", self.model, "--task", "boolq", "-f", data, "--shots", "6")

    def test_retrieval_texts_have_the_length_and_repeat(self):
        task = ["eval", self.model, "--task", "needle-multiquery", "--length", "400", "--limit", "2"]
        one, two = (self.dir / f"needles{i}.jsonl" for i in range(2))
        self.ok(*task, "--resume", one)
        self.ok(*task, "--resume", two, "-t", "1")
        self.assertEqual(one.read_bytes(), two.read_bytes())
        for record in self.records(one):
            self.assertEqual((len(record["references"]), len(record["answers"])), (4, 4))
        self.ok(*task, "--seed", "2", "--resume", self.dir / "seed2.jsonl")
        self.assertNotEqual(self.records(self.dir / "seed2.jsonl")[0]["references"], self.records(one)[0]["references"])
        for name in ("needle-single", "needle-multikey", "needle-multivalue", "variable-tracking", "common-words", "frequent-words"):
            with self.subTest(task=name):
                report = self.report("eval", self.model, "--task", name, "-c", "1000", "--length", "1000", "--limit", "1")
                self.assertEqual(set(report["scores"]), {"found", "all found"})
        self.fails(1, "wanted at least", "eval", self.model, "--task", "needle-single", "--length", "20")

    def test_an_npu_is_named_and_said_to_be_simulated(self):
        text = self.write("text.txt", " ".join(WORDS * 20).encode())
        shown = self.ok("eval", self.model, "-f", text, *NPU, "--overflow", "prune", "--window", "128").text()
        self.assertRegex(shown, r"(?m)^device +simulated m2-max, overflow prune$")
        self.assertRegex(shown, r"(?m)^expert rows +\d+, [\d.]+ % dropped, 0.00 % rerouted \(simulated m2-max\)$")
        self.assertRegex(shown, r"(?m)^same experts +[\d.]+ % of \(token, layer\) choices$")
        report = self.report("eval", self.model, "-f", text, *NPU, "--overflow", "prune", "--window", "128")
        self.assertEqual((report["simulated"], report["overflow"]), (True, "prune"))
        self.assertGreater(report["rows_dropped"], 0)
        # What was dropped cannot be the same expert.
        self.assertLessEqual(report["agreement"]["same_experts"], 1 - report["rows_dropped"] / report["expert_rows"])
        margins = report["agreement"]["margins"]
        self.assertGreater(margins["n_changed"], 0)
        self.assertEqual(margins["n_changed"], round((1 - report["agreement"]["top1"]) * report["n_tokens"]))
        self.assertTrue(0 < margins["median"] <= margins["widest"])
        self.assertTrue(margins["n_changed"] <= margins["n_as_close"] <= report["n_tokens"])
        self.assertRegex(shown, rf"(?m)^changed tokens +{margins['n_changed']}; by the exact run ahead by [\d.e-]+ nats at the median, "
                                rf"[\d.e-]+ at most; {margins['n_as_close']} are as close$")
        self.assertLessEqual(report["agreement"]["alike_margins"]["n_changed"], margins["n_changed"])
        exact = self.report("eval", self.model, "-f", text, *NPU, "--window", "128")
        self.assertLess(exact["agreement"]["margins"]["widest"], margins["widest"])
        self.assertGreater(exact["agreement"]["same_experts"], 0.99)
        self.assertEqual(exact["rows_dropped"], 0)
        alone = self.report("eval", self.model, "-f", text, *NPU, "--no-agreement")
        self.assertNotIn("agreement", alone)

    def test_tasks_run_in_every_mode(self):
        shots = ["--shots", "6", "--limit", "3"]
        for mode, field in (("exact", None), ("prune", "rows_dropped"), ("reroute", "rows_rerouted")):
            with self.subTest(mode=mode):
                report = self.report(*self.task, *shots, *NPU, "--overflow", mode)
                self.assertEqual((report["simulated"], report["overflow"]), (True, mode))
                self.assertEqual({name for name in ("rows_dropped", "rows_rerouted") if report[name] > 0}, {field} - {None})
                self.assertIn("exact", report["scores"]["accuracy"])
                if mode == "exact":
                    self.assertEqual(report["same_answers"]["value"], 1)
                self.assertEqual(report["margins"]["n_changed"], round(3 * (1 - report["same_answers"]["value"])))
                self.assertEqual(report["margins"]["unit"], "nats per character")
                text = self.ok(*self.task, *shots, *NPU, "--overflow", mode).text()
                self.assertRegex(text, rf"(?m)^device +simulated m2-max, overflow {mode}$")
                self.assertRegex(text, r"(?m)^same answers +[\d.]+ % .* as the exact CPU run$")
        needles = self.report("eval", self.model, "--task", "needle-single", "--length", "200", "--limit", "2", *NPU)
        self.assertEqual(needles["same_answers"]["value"], 1)
        self.assertEqual((needles["margins"]["n_changed"], needles["margins"]["unit"]), (0, "nats"))

    def test_a_run_goes_on_after_what_is_in_its_log(self):
        log = self.dir / "resumed.jsonl"
        whole = self.report(*self.task)
        self.assertEqual(self.report(*self.task, "--resume", log, "--limit", "3")["n_items"], 3)
        # Torn by a crash in the middle of a line.
        log.write_bytes(log.read_bytes()[:-20])
        rest = self.report(*self.task, "--resume", log)
        self.assertEqual((rest["n_resumed"], rest["n_items"]), (2, 8))
        self.assertEqual(rest["scores"], whole["scores"])
        self.assertEqual([record["item"] for record in self.records(log)], list(range(8)))
        again = self.report(*self.task, "--resume", log)
        self.assertEqual((again["n_resumed"], again["scores"]), (8, whole["scores"]))

    def test_the_log_of_another_run_is_refused_and_kept(self):
        log = self.dir / "other.jsonl"
        self.ok(*self.task, "--resume", log)
        before = log.read_bytes()
        other = self.dir / "other.gguf"
        self.ok("make-model", *self.SHAPE, "--seed", "4", "-o", other)
        data = self.write("fewer.txt", hellaswag(7))
        for part, args in [
            ("model_hash", ["eval", other, "--task", "hellaswag", "--data", self.items]),
            ("data_hash", ["eval", self.model, "--task", "hellaswag", "--data", data]),
            ("shots '0', this one has '1'", [*self.task, "--shots", "1"]),
            ("numerics", [*self.task, "-ctk", "f32", "-ctv", "f32"]),
            ("numerics", [*self.task, "-ctk", "q8_0", "-ctv", "q8_0"]),
            ("npu '', this one has 'sim:m2-max'", [*self.task, *NPU, "--activation-bits", "8"]),
            ("task 'hellaswag', this one has 'needle-single'", ["eval", self.model, "--task", "needle-single", "--length", "100"]),
        ]:
            with self.subTest(part=part):
                line = self.fails(1, part, *args, "--resume", log)
                self.assertIn("a log of another run", line)
                self.assertEqual(log.read_bytes(), before)
        self.fails(1, "not a log of 'npumoe eval'", *self.task, "--resume", self.write("mine.txt", b"mine"))
        self.assertEqual((self.dir / "mine.txt").read_bytes(), b"mine")
        self.fails(2, "to be", *self.task, "--resume", self.items)
        self.fails(2, "to be", *self.task, "--resume", self.model)
        self.assertEqual(self.items.read_bytes(), hellaswag(8))
        self.fails(1, "No such file", *self.task, "--resume", self.dir / "no" / "such.jsonl")
        self.fails(1, "", *self.task, "--resume", self.dir)

    def test_records_of_another_kind_are_refused_before_anything_is_computed(self):
        log, needles = self.dir / "kind.jsonl", self.dir / "needles.jsonl"
        self.ok("eval", self.model, "--task", "needle-single", "--length", "100", "--limit", "2", "--resume", needles)
        self.ok(*self.task, "--resume", log, "--limit", "2")
        lines, found = log.read_text().splitlines(), needles.read_text().splitlines()
        last = json.loads(lines[2])
        more = {**last, "log_probs": last["log_probs"][:3], "n_tokens": last["n_tokens"][:3],
                "n_characters": last["n_characters"][:3], "gold": 1}
        for part, line in (("item 1 is of another kind of task", found[2]),
                           ("item 1 has other endings than that of", json.dumps(more)),
                           ("item 1 has other endings than that of", json.dumps({**last, "gold": 0})),
                           ("item 8 has other endings than that of", json.dumps({**last, "item": 8}))):
            with self.subTest(line=line):
                log.write_text("\n".join([*lines[:2], line]) + "\n")
                before = log.read_bytes()
                self.fails(1, part, *self.task, "--resume", log)
                self.assertEqual(log.read_bytes(), before)  # six items are missing, and none was added

    def test_an_interrupted_run_reports_what_it_has_and_goes_on(self):
        log = self.dir / "stopped.jsonl"
        data = self.write("many.txt", hellaswag(20000))
        args = ["eval", self.model, "--task", "hellaswag", "--data", data, "--resume", log, "-t", "1"]
        with Running([NPUMOE, *map(os.fspath, args)], env=clean_environment(), stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE) as process:
            seen = read_until(process.stderr.fileno(), lambda seen: b" left\n" in seen)
            self.assertRegex(seen, rb"npumoe: eval: \d+ of 20000 items \(\d+ %\), [\d.]+ items/s, .* left\n")
            process.send_signal(signal.SIGINT)
            shown, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 130)
        n = len(self.records(log))
        self.assertIn(f"{n} items of 20000, stopped early", shown.decode())
        self.assertIn(f"npumoe: interrupted: {n} of 20000 items are done; the same command goes on after them\n".encode(), err)
        more = self.report(*args, "--limit", str(n + 1))
        self.assertEqual((more["n_resumed"], more["n_items"]), (n, n + 1))

    def test_hostile_files_are_one_line(self):
        for name, data, part in [
            ("gold.txt", b"context\nx\na\nb\nc\nd\n", "gold.txt: line 2: 'x'"),
            ("cut.txt", hellaswag(2)[:-30], "cut.txt: line "),
            ("nul.txt", bytes(100), "nul.txt: line 1"),
            ("none.txt", b"", "none.txt: no items"),
            ("long.txt", b"a" * (2 << 20), "long.txt: line 1: 2097152 bytes, limit 1048576"),
        ]:
            with self.subTest(name=name):
                self.fails(1, part, "eval", self.model, "--task", "hellaswag", "--data", self.write(name, data))
        for name, data, part in [
            ("deep.jsonl", b"[" * 100000, "deep.jsonl: line 1: "),
            ("half.jsonl", boolq(3)[:-20], "half.jsonl: line 3: not valid JSON"),
            ("gold.jsonl", boolq(1) + b'{"query": "a", "choices": ["b", "c"], "gold": 1e300}\n', "gold.jsonl: line 2: gold"),
            ("utf8.jsonl", b'{"query": "\xff\xfe"}', "utf8.jsonl: line 1: not valid JSON"),
        ]:
            with self.subTest(name=name):
                self.fails(1, part, "eval", self.model, "--task", "boolq", "--data", self.write(name, data))

    def test_wrong_usage(self):
        for part, args in [
            ("--file is required, or --task", []),
            ("--task boolq: wants its items, --data FILE", ["--task", "boolq"]),
            ("--task common-words: makes its own texts", ["--task", "common-words", "-f", self.items]),
            ("--shots: wants --task too", ["-f", self.items, "--shots", "1"]),
            ("--resume: wants --task too", ["-f", self.items, "--resume", self.dir / "x"]),
            ("--window: not with --task", ["--task", "hellaswag", "-f", self.items, "--window", "10"]),
            ("--length: of retrieval tasks only", ["--task", "hellaswag", "-f", self.items, "--length", "10"]),
            ("--shots: of multiple choice only", ["--task", "needle-single", "--shots", "1"]),
            ("--task", ["--task", "mmlu"]),
            ("--limit", ["--task", "needle-single", "--limit", "0"]),
        ]:
            with self.subTest(part=part):
                self.fails(2, part, "eval", self.model, *args)
        self.assertEqual(sorted(re.findall(r"(?m)^  ([a-z]+(?:-[a-z]+)*) {2,}[a-z]", self.ok("eval", "--help").text())),
                         ["boolq", "common-words", "frequent-words", "hellaswag", "needle-multikey", "needle-multiquery",
                          "needle-multivalue", "needle-single", "piqa", "variable-tracking"])
