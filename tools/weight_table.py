#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/weights.md: what a weight format does to the outputs of layers and to perplexity, and what it saves.

usage: weight_table.py NPUMOE [MODEL] [--text FILE]...     from the root of a checkout

Every expert row and every attention chunk goes through the simulated NPU (placement base: capacities are whole chunks, so that
nothing overflows to the CPU).
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORMATS = ("fp16", "int8", "lut8", "lut6", "lut4")


def npumoe(program, *args):
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def evaluate(args, text, experts, attention):
    shown = npumoe(args.npumoe, "eval", args.model, "-f", text, "--npu", f"sim:{args.npu}", "--placement", "base",
                   "--expert-weights", experts, "--attention-weights", attention, "--json")
    if shown["npu"]["fallbacks"]:
        sys.exit(f"experts {experts}, attention {attention}: fell back: {shown['npu']['fallbacks']}")
    return shown


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("npumoe")
    parser.add_argument("model", nargs="?", default=ROOT / "models/demo-moe.gguf")
    parser.add_argument("--text", action="append")
    parser.add_argument("--npu", default="m2-max")
    args = parser.parse_args()
    texts = args.text or [ROOT / f"models/heldout/{name}.txt" for name in ("prose", "maths")]

    with tempfile.TemporaryDirectory() as folder:
        made = {f: npumoe(args.npumoe, "plan", args.model, "--npu", args.npu, "--placement", "base", "--expert-weights", f,
                          "--attention-weights", f, "--json", *(["-f", texts[0]] if f != "fp16" else []),  # which has no error
                          "-o", pathlib.Path(folder) / "plan.json")
                for f in FORMATS}
    errors = {row["format"]: row for row in made["lut4"]["weight_errors"]}
    print("| format | programs | experts | gate and up alone | down alone | worst expert | attention | worst attention |")
    print("|---|---|---|---|---|---|---|---|")
    for f in FORMATS:
        row = errors[f]
        kinds = ("experts", "gate_up", "down", "worst_expert", "attention", "worst_attention")
        print(f"| {f} | {made[f]['program_bytes'] / 1e6:.1f} MB | "
              + " | ".join(f"{100 * row[kind]:.2f} %" for kind in kinds) + " |")

    print("\n| text | experts | attention | perplexity | against the exact run | same likeliest token | KL mean | "
          f"prefill, simulated on {args.npu} |")
    print("|---|---|---|---|---|---|---|---|")
    for text in texts:
        for experts, attention in [(f, "fp16") for f in FORMATS] + [("fp16", f) for f in FORMATS[1:]] + [(f, f) for f in FORMATS[1:]]:
            shown = evaluate(args, text, experts, attention)
            exact = shown["agreement"]
            change = 100 * (shown["perplexity"] / exact["exact_perplexity"] - 1)
            print(f"| {pathlib.Path(text).stem} | {experts} | {attention} | {shown['perplexity']:.3f} | {change:+.2f} % | "
                  f"{100 * exact['top1']:.2f} % | {exact['mean_kl']:.1e} | {1e3 * shown['npu']['prefill_seconds']:.1f} ms |", flush=True)


if __name__ == "__main__":
    main()
