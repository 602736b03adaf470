#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/evaluation.md: what exact, prune and reroute do to perplexity, retrieval and multiple choice.

usage: eval_table.py NPUMOE [MODEL] [--data FOLDER] [--logs FOLDER] [more: --help]

NPUMOE is the program. Every task runs on the NPU in each mode, and beside it exactly on the CPU. FOLDER has hellaswag.txt (or
hellaswag_val_full.txt.bz2), boolq.jsonl, piqa.jsonl; what is missing is left out and named. With --logs a run that was stopped
goes on where it was.
"""
import argparse
import bz2
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NEEDLES = ("needle-single", "needle-multikey", "needle-multiquery")
# Shots that make prompts as long as chunks are, so that there is overflow to speak of.
CHOICES = {"hellaswag": 4, "boolq": 1, "piqa": 6}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("npumoe")
    parser.add_argument("model", nargs="?", default=ROOT / "models/demo-moe.gguf", type=pathlib.Path)
    parser.add_argument("--text", action="append", type=pathlib.Path, help="texts of perplexity [prose and maths of models/heldout]")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared/data/eval")
    parser.add_argument("--logs", type=pathlib.Path, help="keep logs of finished items here")
    parser.add_argument("--npu", default="sim:m2-max")
    parser.add_argument("--placement", default="tiers+groups")
    parser.add_argument("--chunks", type=int, nargs="+", default=[96, 128], help="--npu-chunk: the longer, the more overflow")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 384], help="of retrieval texts")
    parser.add_argument("--items", type=int, default=200)
    return parser.parse_args()


def data_file(args, task, folder):
    """Path of a task's items, unpacked where need be, or None."""
    for name in (f"{task}.jsonl", f"{task}.txt"):
        if (args.data / name).exists():
            return args.data / name
    packed = args.data / "hellaswag_val_full.txt.bz2"
    if task != "hellaswag" or not packed.exists():
        return None
    unpacked = pathlib.Path(folder) / "hellaswag.txt"
    if not unpacked.exists():
        unpacked.write_bytes(bz2.open(packed).read())
    return unpacked


class Table:
    def __init__(self, args):
        self.args = args

    def run(self, chunk, mode, name, *flags, resumes=True):
        args = self.args
        command = [args.npumoe, "eval", args.model, "--json", "-c", args.context, "--npu", args.npu, "--placement", args.placement,
                   "--npu-chunk", chunk, "--overflow", mode, *flags]
        if args.logs and resumes:
            args.logs.mkdir(parents=True, exist_ok=True)
            command += ["--resume", args.logs / f"{name.replace(' ', '-').replace(',', '')}-{mode}-{chunk}.jsonl"]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{name}, {mode}: exit {done.returncode}")
        report = json.loads(done.stdout)
        if report["npu"]["fallbacks"]:
            sys.exit(f"{name}, {mode}: fell back: {report['npu']['fallbacks']}")
        return report

    def rows(self, report):
        n = report["expert_rows"]
        return f"{100 * report['rows_dropped'] / n:.1f} %", f"{100 * report['rows_rerouted'] / n:.1f} %"

    def changed(self, margins):
        """How many changed, and by how many nats the exact run was sure of them: median and widest."""
        if margins is None:
            return "not in the log"
        return f"{margins['n_changed']}: {margins['median']:.2g}, {margins['widest']:.2g}" if margins["n_changed"] else "0"

    def text(self, path, chunk, mode):
        report = self.run(chunk, mode, path.stem, "-f", path, resumes=False)
        agreement = report["agreement"]
        change = 100 * (report["perplexity"] / agreement["exact_perplexity"] - 1)
        error = 100 * report["nll_standard_error"] * 1.96
        dropped, rerouted = self.rows(report)
        print(f"| {path.stem} | {chunk} | {mode} | {dropped} | {rerouted} | {report['perplexity']:.3f} ± {error:.1f} % | {agreement['exact_perplexity']:.3f} | "
              f"{change:+.2f} % | {100 * agreement['top1']:.2f} % | {self.changed(agreement['margins'])} | {self.changed(agreement['alike_margins'])} | {agreement['mean_kl']:.1e} | "
              f"{100 * agreement['same_experts']:.2f} % |", flush=True)

    def task(self, name, score, chunk, mode, flags):
        report = self.run(chunk, mode, name, *flags, "--limit", self.args.items)
        dropped, rerouted = self.rows(report)

        def shown(share):
            return f"{100 * share['value']:.1f} % [{100 * share['low']:.1f}, {100 * share['high']:.1f}]"

        share = report["scores"][score]
        print(f"| {name} | {chunk} | {mode} | {dropped} | {rerouted} | {shown(share)} | {shown(share['exact'])} | "
              f"{shown(report['same_answers'])} | {self.changed(report.get('margins'))} |", flush=True)


def main():
    args = parse()
    table = Table(args)
    texts = args.text or [ROOT / f"models/heldout/{name}.txt" for name in ("prose", "maths")]
    settings = [(args.chunks[-1], "exact")] + [(chunk, mode) for chunk in args.chunks for mode in ("prune", "reroute")]
    told = args.npu.replace("sim:", "simulated ")
    print(f"{args.model.name}, {told}, placement {args.placement}, context {args.context}; intervals are of 95 %\n")
    print("| text | chunk | mode | dropped | rerouted | perplexity | exact CPU run | change | same likeliest token | changed: margins | ... with the same experts | KL mean | same experts |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for path in texts:
        for chunk, mode in settings:
            table.text(path, chunk, mode)
    print(f"\n| task, {args.items} items | chunk | mode | dropped | rerouted | right | exact CPU run | same answers | changed: margins |")
    print("|---|---|---|---|---|---|---|---|---|")
    missing = []
    with tempfile.TemporaryDirectory() as folder:
        for length in args.lengths:
            for task in NEEDLES:
                for chunk, mode in settings:
                    table.task(f"{task}, {length} tokens", "found", chunk, mode, ["--task", task, "--length", length])
        for task, shots in CHOICES.items():
            path = data_file(args, task, folder)
            if path is None:
                missing.append(task)
                continue
            for chunk, mode in settings:
                table.task(f"{task}, {shots} shot{'s' if shots != 1 else ''}", "accuracy per character", chunk, mode,
                           ["--task", task, "--data", path, "--shots", shots])
    if missing:
        print(f"\nleft out, no file in {args.data}: {', '.join(missing)}")


if __name__ == "__main__":
    main()
