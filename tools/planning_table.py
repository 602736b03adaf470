#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of docs/planning.md: what each step of a plan is worth, on one model with its own calibration.

usage: planning_table.py NPUMOE [MODEL]     from the root of a checkout
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Each is the one before and one idea more; "naive" also has attention on the CPU.
STEPS = {"naive": "naive", "base": "+ attention on the NPU", "tiers": "+ tiers", "tiers+groups": "+ groups",
         "all": "+ residency (the paper)", "ours": "ours"}
NOISE = 0.005  # of a time: smaller differences are called equal


def npumoe(program, *args):
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done.stdout


def measure(args, folder, stats, placement, chunk):
    plan = folder / "plan.json"
    made = json.loads(npumoe(args.npumoe, "plan", args.model, "--stats", stats, "--npu", args.npu, "--placement", placement,
                             "--chunk", chunk, "--mode", args.mode, "--json", "-o", plan))
    run = json.loads(npumoe(args.npumoe, "run", args.model, "-f", args.prompt, "-n", 1, "--temp", 0, "-c", args.context,
                            "--npu", f"sim:{args.npu}", "--plan", plan, "--routing-stats", stats, "--json"))
    npu = run["npu"]
    if not npu["simulated"] or npu["fallbacks"]:
        sys.exit(f"{placement}, chunk {chunk}: not as planned: {npu['fallbacks']}")
    experts = npu["experts"]
    on_npu = experts["rows_used"] + experts["rows_padded"]
    rows = experts["rows_used"] + experts["rows_cpu"] + experts["rows_spilled"] + experts["rows_pruned"]
    n_layers = sum(1 for layer in npu["layers"] if layer["experts"]["dispatches"] + layer["experts"]["rows_cpu"] > 0)
    return {"programs": made["n_programs"], "padding": 100 * experts["rows_padded"] / on_npu if on_npu else None,
            "overflow": 100 * (experts["rows_spilled"] + experts["rows_pruned"]) / rows, "on_npu": 100 * experts["rows_used"] / rows,
            "dispatches": experts["dispatches"] / n_layers, "seconds": npu["prefill_seconds"],
            "joules": npu["npu_joules"] + npu["cpu_joules"], "pruned": experts["rows_pruned"], "npu_ms": experts["npu_ms"], "cpu_ms": experts["cpu_ms"],
            "attention_ms": npu["attention"]["npu_ms"] + npu["attention"]["cpu_ms"]}


def sentence(step, chunk, before, after):
    """Why a step did not help, from the counts of both runs; empty when it did."""
    if after["seconds"] < before["seconds"] * (1 - NOISE):
        return ""
    changed = [f"{name} {before[key]:.2f} -> {after[key]:.2f}" for key, name in
               (("attention_ms", "attention ms"), ("dispatches", "dispatches a layer"), ("npu_ms", "experts' NPU ms"),
                ("cpu_ms", "experts' CPU ms"), ("overflow", "overflow %"))
               if abs(after[key] - before[key]) > 0.005]
    word = "slower" if after["seconds"] > before["seconds"] * (1 + NOISE) else "no faster"
    return f"Chunk {chunk}, {STEPS[step]}: {word} than the step before ({', '.join(changed) or 'it changes nothing'})."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("npumoe")
    parser.add_argument("model", nargs="?", default=ROOT / "models" / "demo-moe.gguf")
    parser.add_argument("--calibration", nargs="+", default=[ROOT / "models" / "calibration.txt"])
    parser.add_argument("--prompt", default=ROOT / "models" / "heldout" / "prose.txt")
    parser.add_argument("--prompt-bytes", type=int, default=3000, help="of the prompt file; must fit the context")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--npu", default="m2-max")
    parser.add_argument("--mode", default="exact")
    parser.add_argument("--chunks", default="128,256,512")
    args = parser.parse_args()
    notes = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        stats = folder / "routing_stats.json"
        npumoe(args.npumoe, "calibrate", "-m", args.model, "-f", *args.calibration, "--chunk", "128,256,512,1024", "-o", stats)
        text = pathlib.Path(args.prompt).read_bytes()[:args.prompt_bytes].decode("utf-8", "ignore")
        args.prompt = folder / "prompt.txt"
        args.prompt.write_text(text, encoding="utf-8")
        clock = f"simulated on {args.npu}"
        print(f"| chunk | plan | programs | padding | overflow | rows on the NPU | dispatches a layer | TTFT, {clock} | energy, {clock} |")
        print("|---|---|---|---|---|---|---|---|---|")
        for chunk in map(int, args.chunks.split(",")):
            before = None
            for step in STEPS:
                now = measure(args, folder, stats, step, chunk)
                padding = "-" if now["padding"] is None else f"{now['padding']:.0f} %"
                print(f"| {chunk} | {STEPS[step]} | {now['programs']} | {padding} | {now['overflow']:.1f} % | {now['on_npu']:.0f} % | "
                      f"{now['dispatches']:.1f} | {now['seconds'] * 1e3:.2f} ms | {now['joules'] * 1e3:.1f} mJ |", flush=True)
                if before is not None:
                    notes.append(sentence(step, chunk, before, now))
                before = now
    for note in filter(None, notes):
        print("\n" + note, end="")
    print()


if __name__ == "__main__":
    main()
