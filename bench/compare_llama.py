# SPDX-License-Identifier: Apache-2.0
"""Speed of this engine beside llama.cpp's (npm node-llama-cpp), interleaved runs on the same model, medians and ratio.

usage: compare_llama.py NPUMOE NODE_MODULES MODEL... [--rounds 5] [--threads 2] [--prompt 512] [--decode 64]
"""
import argparse
import json
import os
import statistics
import subprocess


def ours(args, model):
    done = subprocess.run([args.npumoe, "bench", "-m", model, "-p", str(args.prompt), "-n", str(args.decode), "-r", "1",
                           "-t", str(args.threads), "-o", "json"], check=True, capture_output=True, text=True)
    rows = json.loads(done.stdout)
    return {"prefill": next(r["avg_ts"] for r in rows if r["n_prompt"]),
            "decode": next(r["avg_ts"] for r in rows if r["n_gen"])}


def llama(args, model):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama_speed.mjs")
    done = subprocess.run(["node", script, args.node_modules, model, str(args.threads), str(args.prompt),
                           str(args.decode)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("npumoe")
    parser.add_argument("node_modules")
    parser.add_argument("models", nargs="+")
    for name, value in (("rounds", 5), ("threads", 2), ("prompt", 512), ("decode", 64)):
        parser.add_argument("--" + name, type=int, default=value)
    args = parser.parse_args()
    print("| model | test | ours t/s | llama.cpp t/s | median of paired ratios |\n|---|---|---:|---:|---:|")
    for model in args.models:
        pairs = [(ours(args, model), llama(args, model)) for _ in range(args.rounds)]
        for test, label in (("prefill", f"pp{args.prompt}"), ("decode", f"tg{args.decode}")):
            mine, theirs = [p[0][test] for p in pairs], [p[1][test] for p in pairs]
            ratio = statistics.median(a / b for a, b in zip(mine, theirs))
            print(f"| {os.path.basename(model)} | {label} | {statistics.median(mine):.1f} | "
                  f"{statistics.median(theirs):.1f} | {ratio:.2f} |", flush=True)
    subprocess.run([args.npumoe, "--version"], check=True)


if __name__ == "__main__":
    main()
