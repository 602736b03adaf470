# SPDX-License-Identifier: Apache-2.0
"""Speed of this engine beside llama.cpp's (npm node-llama-cpp) and the machine's roofs, measured in turn on the same
models: medians, ratios of paired runs, share of the roof. Markdown on stdout.

usage: compare_llama.py BUILD_FOLDER NODE_MODULES MODEL... [--rounds 5] [--threads 2] [--prompts 512,2048] [--decode 64]
                        [--depths 0,8192]
"""
import argparse
import json
import os
import statistics
import subprocess
import time


def run(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def roofs(args, model):
    return json.loads(run([os.path.join(args.build, "bench", "machine_roofs"), str(args.threads), model]))


def ours(args, model):
    npumoe = os.path.join(args.build, "bin", "npumoe")
    rows = json.loads(run([npumoe, "bench", "-m", model, "-p", args.prompts, "-n", str(args.decode), "-d", args.depths, "-r", "3",
                           "-t", str(args.threads), "-o", "json"]))
    begin = time.monotonic()
    run([npumoe, "run", "-m", model, "-p", "a", "-n", "1", "-c", "2048", "-t", str(args.threads)])
    return {"prefill": {f"{r['n_depth']} {r['n_prompt']}": r["avg_ts"] for r in rows if r["n_prompt"]},
            "decode": {str(r["n_depth"]): r["avg_ts"] for r in rows if r["n_gen"]},
            "firstToken": time.monotonic() - begin}


def llama(args, model):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama_speed.mjs")
    return json.loads(run(["node", script, args.node_modules, model, str(args.threads), args.prompts,
                           str(args.decode), args.depths]).strip().splitlines()[-1])


def prefill_flops(info, n_tokens, depth):
    """Of a prompt after `depth` other tokens, multiply and add counted: what has to be done when only the last token's
    logits are wanted, so that the last layer's feed-forward runs for one token. Attention is causal."""
    heads, kv = info["n_heads"] * info["head_dim"], info["n_kv_heads"] * info["head_dim"]
    attention = info["dim"] * (2 * heads + 2 * kv)
    experts = 3 * info["dim"] * info["expert_dim"] * info["top_k"] + info["dim"] * info["n_experts"]
    weights = n_tokens * (info["n_layers"] * attention + (info["n_layers"] - 1) * experts) + experts
    weights += info["vocab_size"] * info["dim"]
    scores = info["n_layers"] * 2 * heads * n_tokens * (depth + n_tokens / 2)
    return 2 * (weights + scores)


def decode_bytes(info, depth):
    """Read for a token: all weights that are used but the embedding, of which one row is, and the cache."""
    weights = (info["n_active_params"] - info["vocab_size"] * info["dim"]) * info["size_bytes"] / info["n_params"]
    return weights + info["kv_bytes_per_token"] * depth


def table(args, model):
    info = json.loads(run([os.path.join(args.build, "bin", "npumoe"), "info", model, "--json"]))
    if info["n_moe_layers"] != info["n_layers"] or info["shared_expert_dim"]:
        raise SystemExit(f"{model}: models with dense layers or shared experts are not counted here")
    runs = [(roofs(args, model), ours(args, model), llama(args, model)) for _ in range(args.rounds)]
    unit = "bf16" if info["type"] == "BF16" else "f32" if info["type"] in ("F16", "F32") else "int8"
    name = os.path.splitext(os.path.basename(model))[0]

    def row(test, mine, theirs, share):
        ratio = statistics.median(a / b for a, b in zip(mine, theirs))
        of_roof = f"{100 * statistics.median(share):.0f} %" if share else ""
        print(f"| {name} | {test} | {statistics.median(mine):.4g} | {statistics.median(theirs):.4g} | {ratio:.2f} | "
              f"{of_roof} |", flush=True)

    for depth in args.depths.split(","):
        after = f" after {depth}" if depth != "0" else ""
        for n in args.prompts.split(","):
            mine = [r[1]["prefill"][f"{depth} {n}"] for r in runs]
            flops = prefill_flops(info, int(n), int(depth)) / int(n)
            row(f"pp{n}{after}, t/s, of {unit}", mine, [r[2]["prefill"][f"{depth} {n}"] for r in runs],
                [flops * speed / r[0][unit] for speed, r in zip(mine, runs)])
        mine = [r[1]["decode"][depth] for r in runs]
        row(f"tg{args.decode}{after}, t/s, of read", mine, [r[2]["decode"][depth] for r in runs],
            [decode_bytes(info, int(depth)) * speed / r[0]["read"] for speed, r in zip(mine, runs)])
    row("file to first token, s", [r[1]["firstToken"] for r in runs], [r[2]["firstToken"] for r in runs], None)
    return runs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("node_modules")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", default="512,2048")
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--depths", default="0", help="tokens in the context before the measured ones: 0,8192")
    args = parser.parse_args()
    print("| model | test | ours | llama.cpp | median of paired ratios | share of the roof |\n|---|---|---:|---:|---:|---:|")
    seen = [table(args, model) for model in args.models]
    measured = [round_[0] for runs in seen for round_ in runs]
    middle = {k: statistics.median(m[k] for m in measured) / 1e9 for k in ("f32", "bf16", "int8", "read")}
    print(f"\nmachine: {measured[0]['machine']}  \nroofs, medians: f32 {middle['f32']:.0f} GFLOP/s, bf16 {middle['bf16']:.0f}, "
          f"int8 {middle['int8']:.0f}, read {middle['read']:.1f} GB/s")


if __name__ == "__main__":
    main()
