#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the cost model against published measurements, through `npumoe estimate`.

    tools/judge_device_model.py NPUMOE             prints the errors; exit 1 when the half that the fit did not see misses
                                                   a median of 20 %, a 90th percentile of 35 %, or a rank correlation of 0.9
    tools/judge_device_model.py NPUMOE --markdown  prints the tables of docs/device_model.md
    tools/judge_device_model.py NPUMOE --update    writes them there
    tools/judge_device_model.py --self-test        wrong answers must be noticed
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests/data/npu/published.json"
DOCUMENT = ROOT / "docs/device_model.md"
BEGIN, END = "<!-- begin tables -->\n", "<!-- end tables -->\n"

MAX_MEDIAN, MAX_P90, MIN_RANK = 0.20, 0.35, 0.9
CLASSES = {"head": "output heads through Core ML", "gemv": "matrix times vector, direct", "gemm": "square products, direct",
           "conv1x1": "1x1 convolutions", "swiglu": "one expert", "graph": "whole graphs", "attention": "attention",
           "cpu": "on the CPU"}


def quantile(values, q):
    """Linear between the ranks."""
    values = sorted(values)
    at = q * (len(values) - 1)
    low = int(at)
    return values[low] + (at - low) * (values[min(low + 1, len(values) - 1)] - values[low])


def ranks(values):
    """Mean rank of equals."""
    order = sorted(values)
    return [order.index(v) + (order.count(v) - 1) / 2 for v in values]


def rank_correlation(a, b):
    a, b = ranks(a), ranks(b)
    mean = (len(a) - 1) / 2
    cov = sum((x - mean) * (y - mean) for x, y in zip(a, b))
    var = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return cov / var if var > 0 else 0.0


def concordant(rows):
    """Of pairs of rows of one chip and path that are published more than 5 % apart, how many the model orders alike."""
    right = total = 0
    for i, a in enumerate(rows):
        for b in rows[:i]:
            if a["chip"] != b["chip"] or a["path"] != b["path"] or abs(math.log(a["ms"] / b["ms"])) < math.log(1.05):
                continue
            total += 1
            right += (a["ms"] > b["ms"]) == (a["predicted"] > b["predicted"])
    return right, total


def ask(program, row):
    done = subprocess.run([program, "estimate", "--npu", row["chip"], "--op", row["op"], "--shape", row["shape"], "--weights",
                           row["weights"], "--path", row["path"], "--json"], capture_output=True, check=False, timeout=60)
    if done.returncode != 0:
        raise SystemExit(f"{row['chip']} {row['op']} {row['shape']}: {done.stderr.decode().strip()}")
    return json.loads(done.stdout)


def predict(program, rows):
    for row in rows:
        said = ask(program, row)
        row.update(predicted=said["ms"], predicted_mj=said["mj"], bound=said["bound"], error=said["ms"] / row["ms"] - 1)


def on_npu(rows, split):
    return [r for r in rows if r["split"] == split and r["path"] != "cpu"]


def by_chip_rank(rows):
    """(chip, rows, rank correlation of published and predicted), chips with at least four rows."""
    found = []
    for chip in sorted({r["chip"] for r in rows}):
        own = [r for r in rows if r["chip"] == chip]
        if len(own) >= 4:
            found.append((chip, len(own), rank_correlation([r["ms"] for r in own], [r["predicted"] for r in own])))
    return found


def failures(rows):
    judged = on_npu(rows, "judge")
    errors = [abs(r["error"]) for r in judged]
    bad = []
    if not errors:
        return ["no rows to judge"]
    if quantile(errors, 0.5) > MAX_MEDIAN:
        bad.append(f"median error {quantile(errors, 0.5):.1%}, wanted at most {MAX_MEDIAN:.0%}")
    right, total = concordant(judged)
    if right < MIN_RANK * total:
        bad.append(f"{right} of {total} pairs in the published order, wanted at least {MIN_RANK:.0%}")
    if quantile(errors, 0.9) > MAX_P90:
        bad.append(f"90th percentile {quantile(errors, 0.9):.1%}, wanted at most {MAX_P90:.0%}")
    for chip, n, rank in by_chip_rank(judged):
        if n > 4 and rank < MIN_RANK:  # of four rows, one pair of neighbours the other way round is 0.8
            bad.append(f"rank correlation on {chip}, {n} rows: {rank:.3f}, wanted at least {MIN_RANK}")
    return bad


def error_line(name, rows, key="error"):
    errors = [abs(r[key]) for r in rows]
    signed = quantile([r[key] for r in rows], 0.5)
    return (f"| {name} | {len(rows)} | {quantile(errors, 0.5):.1%} | {quantile(errors, 0.9):.1%} | {max(errors):.1%} | "
            f"{signed:+.1%} |")


def summary(rows):
    head = "| {} | rows | median error | 90 % within | worst | middle, with sign |\n|---|---|---|---|---|---|"
    lines = [head.format("half")]
    for split in ("fit", "judge"):
        lines.append(error_line(f"**{split}**", on_npu(rows, split)))
        for name, title in CLASSES.items():
            own = [r for r in on_npu(rows, split) if r["class"] == name]
            if own:
                lines.append(error_line(f"{split}: {title}", own))
    every = [r for r in rows if r["path"] != "cpu"]
    lines.append(error_line("all rows, those left out too", every))
    lines += ["", head.format("chip, both halves")]
    for chip in dict.fromkeys(r["chip"] for r in every):
        lines.append(error_line(chip, [r for r in every if r["chip"] == chip and r["split"] != "excluded"]
                                or [r for r in every if r["chip"] == chip]))
    cpu = [r for r in rows if r["path"] == "cpu" and r["split"] != "excluded"]
    lines += ["", head.format("CPU, nothing fitted"), error_line("all", cpu)]
    energy = [dict(r, error_mj=r["predicted_mj"] / r["mj"] - 1) for r in rows if "mj" in r and r["split"] != "excluded"]
    lines += ["", head.format("energy")]
    for split in ("fit", "judge"):
        own = [r for r in energy if r["split"] == split and r["path"] != "cpu"]
        if own:
            lines.append(error_line(f"NPU, {split}", own, "error_mj"))
    own = [r for r in energy if r["path"] == "cpu"]
    if own:
        lines.append(error_line("CPU (package), nothing fitted", own, "error_mj"))
    lines += ["", "| judge half, rank correlation within a chip | rows | Spearman |", "|---|---|---|"]
    lines += [f"| {chip} | {n} | {rank:.3f} |" for chip, n, rank in by_chip_rank(on_npu(rows, "judge"))]
    right, total = concordant(on_npu(rows, "judge"))
    lines += ["", f"Of {total} pairs of rows of the judge half on one chip and path that are more than 5 % apart, the model orders "
                  f"{right} ({right / max(total, 1):.1%}) as published."]
    return "\n".join(lines)


def table(rows):
    lines = ["| half | chip | op | shape | weights | path | published ms | predicted ms | error | bound | published mJ | "
             "predicted mJ | source |", "|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        mj = (f"{r['mj']:.3g}", f"{r['predicted_mj']:.3g}") if "mj" in r else ("", "")
        how = f" ({r['how']})" if "how" in r else ""
        shape = r["shape"].replace("*", "\\*").replace(",", ", ")
        lines.append(f"| {r['split']} | {r['chip']} | {r['op']} | {shape} | {r['weights']} | {r['path']} | {r['ms']:.4g} | "
                     f"{r['predicted']:.4g} | {r['error']:+.0%} | {r['bound']} | {mj[0]} | {mj[1]} | {r['source']}{how} |")
    reasons = {}
    for r in rows:
        if r["split"] == "excluded":
            reasons.setdefault(r["why"], []).append(f"{r['chip']} {r['op']} {r['shape']}".replace("*", "\\*"))
    lines += ["", "Left out of both halves:", ""]
    lines += [f"- {'; '.join(names)}: {why}." for why, names in reasons.items()]
    return "\n".join(lines)


def tables(rows):
    return f"{BEGIN}\n{summary(rows)}\n\n## Every row\n\n{table(rows)}\n\n{END}"


class SelfTest(unittest.TestCase):
    def rows(self, factor):
        made = []
        for i in range(10):
            ms = 1.5 ** i
            made.append({"chip": "m1", "class": "gemm", "path": "direct", "split": "judge", "ms": ms,
                         "predicted": ms * factor(i), "error": factor(i) - 1})
        return made

    def test_right_answers_pass(self):
        self.assertEqual(failures(self.rows(lambda i: 1.1)), [])

    def test_a_bias_a_long_tail_and_a_wrong_order_are_noticed(self):
        self.assertEqual(len(failures(self.rows(lambda i: 1.3))), 1)
        self.assertIn("90th", failures(self.rows(lambda i: 1.5 if i < 3 else 1.0))[0])
        self.assertTrue(any("rank" in f for f in failures(self.rows(lambda i: 1.5 ** (9 - 2 * i)))))
        self.assertEqual(failures([]), ["no rows to judge"])

    def test_the_halves_are_halves(self):
        rows = json.loads(DATA.read_text(encoding="utf-8"))["rows"]
        for name in CLASSES:
            n = [sum(r["class"] == name and r["split"] == split for r in rows) for split in ("fit", "judge")]
            self.assertLessEqual(abs(n[0] - n[1]), 3, name)


def main():
    if "--self-test" in sys.argv[1:]:
        unittest.main(argv=sys.argv[:1])
    rows = json.loads(DATA.read_text(encoding="utf-8"))["rows"]
    predict(os.path.abspath(sys.argv[1]), rows)
    text = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    if "--markdown" in sys.argv[2:]:
        print(tables(rows))
    elif "--update" in sys.argv[2:]:
        begin, end = text.index(BEGIN), text.index(END) + len(END)
        DOCUMENT.write_text(text[:begin] + tables(rows) + text[end:], encoding="utf-8")
    else:
        print(summary(rows))
        bad = failures(rows)
        if tables(rows) not in text:
            bad.append(f"docs/{DOCUMENT.name} shows other tables: run with --update")
        print("\n".join(["", *bad] if bad else ["", "within bounds"]))
        return 1 if bad else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
