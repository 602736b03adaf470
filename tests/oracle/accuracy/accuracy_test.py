# SPDX-License-Identifier: Apache-2.0
"""Holds the engine's next-token distributions against two independent oracles.

The truth is a float64 numpy forward of the same file's decoded weights (reference_model.py); the yardstick is llama.cpp
run on the same file. KL divergences are judged by median and 90th percentile: rounding may flip near-tied experts.

usage: accuracy_test.py NPUMOE LOG_PROBS NODE_MODULES [--table]      exit 77: an oracle is absent
"""
import ctypes
import glob
import os
import subprocess
import sys
import tempfile

SKIP = 77
try:
    import numpy as np
except ImportError:
    print("skipped: python3-numpy is not installed")
    sys.exit(SKIP)

from gguf_numpy import Gguf
from reference_model import ReferenceModel, kl

FAMILIES = ["qwen3moe", "phimoe", "mixtral", "qwen2moe", "olmoe", "llama", "qwen3"]
QUANTIZED = ["f16", "bf16", "q8_0", "q4_0", "q4_k", "q6_k"]
N_TOKENS = 64
VOCAB = 512          # of every tiny shape
CONTEXT = 72         # positions both engines reserve
F32_TO_LLAMA = 1e-6   # median KL of two f32 engines
F32_TO_TRUTH = 1e-9   # f32 engine against float64: rounding of f32 gives about 1e-13


class Peers:
    def __init__(self, npumoe, log_probs, node_modules, folder):
        self.npumoe, self.log_probs_program, self.folder = npumoe, log_probs, folder
        self.node_modules = node_modules
        libraries = glob.glob(os.path.join(node_modules, "@node-llama-cpp/linux-x64/bins/*/libggml-base.so"))
        self.ggml = ctypes.CDLL(libraries[0])
        self.probe = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama_log_probs.mjs")

    def make(self, family, dtype):
        path = os.path.join(self.folder, f"{family}-{dtype}.gguf")
        subprocess.run([self.npumoe, "make-model", "--shape", f"tiny-{family}", "--type", dtype, "--seed", "7", "-o", path],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return path

    def ours(self, path, tokens, *options):
        out = path + ".ours"
        subprocess.run([self.log_probs_program, path, out, ",".join(map(str, tokens)), *options], check=True)
        return np.fromfile(out, np.float64).reshape(len(tokens), -1)

    def llama(self, paths, tokens):
        """Runs llama.cpp on all models in one process: starting it costs more than a tiny model does."""
        subprocess.run(["node", self.probe, self.node_modules, ",".join(map(str, tokens)), str(CONTEXT), *paths],
                       check=True, stdout=subprocess.DEVNULL)

    @staticmethod
    def llama_log_probs(path):
        rows = np.fromfile(path + ".llama", np.float32).reshape(N_TOKENS, -1).astype(np.float64)
        return rows - np.log(np.sum(np.exp(rows), axis=1, keepdims=True))  # they are f32 logs of f32 probabilities


# 8-bit activations: for Q8_0 and Q4_0 llama.cpp rounds them the same way, so both errors have one distribution. The
# median of 64 positions whose KL spreads by about 40 % has a standard error of 6 %, the ratio of two such 9 %: 30 % is
# three of these. Under the published PhiMoE reading the model is another one: its weights do not sum to 1, and jump
# where an expert's logit crosses a threshold. Next to the small error of bfloat16 activations the jumps count most.
AS_LLAMA = 1.3
PUBLISHED = {"bf16": 5.0, "f16": 1.0}


def summary(p, q):
    values = kl(p, q)
    return np.median(values), np.percentile(values, 90)


def main():
    npumoe, log_probs, node_modules = sys.argv[1:4]
    if not glob.glob(os.path.join(node_modules, "@node-llama-cpp/linux-x64/bins/*/libggml-base.so")):
        print(f"skipped: no node-llama-cpp in {node_modules} (npm absent or offline when scripts/setup ran)")
        return SKIP
    failures = n_checks = 0
    print(f"{'model':<14} {'type':<5} {'ours median':>12} {'p90':>9} {'llama.cpp median':>17} {'p90':>9} {'ours|llama.cpp':>15}")

    def report(name, dtype, figures, good):
        nonlocal failures, n_checks
        print(f"{name:<14} {dtype:<5} {figures} {'' if good else '  FAILED'}", flush=True)
        failures, n_checks = failures + (not good), n_checks + 1

    with tempfile.TemporaryDirectory() as folder:
        peers = Peers(npumoe, log_probs, node_modules, folder)
        models = [(family, dtype, peers.make(family, dtype)) for family in FAMILIES for dtype in ["f32", *QUANTIZED]]
        tokens = np.random.default_rng(11).integers(0, VOCAB, N_TOKENS)
        peers.llama([path for _, _, path in models], tokens)
        for family, dtype, path in models:
            gguf = Gguf(path, peers.ggml)
            # llama.cpp reads PhiMoE its own way and chooses the rope factors by the size of the context.
            switch = ["phimoe-llama-cpp", "context", str(CONTEXT)] if family == "phimoe" else []
            truth = ReferenceModel(gguf, phimoe_llama_cpp=bool(switch)).log_probs(tokens)
            ours, llama = peers.ours(path, tokens, *switch), peers.llama_log_probs(path)
            mine, theirs, between = summary(truth, ours), summary(truth, llama), summary(llama, ours)
            # Where the CPU has the integer path and, for bf16, AVX512-BF16; elsewhere activations are f32.
            rounded = dtype not in ("f32", "f16")
            slack = AS_LLAMA if rounded else 1
            good = mine[0] <= slack * theirs[0] and mine[1] <= slack * theirs[1]
            if dtype == "f32":
                good = between[0] <= F32_TO_LLAMA and mine[0] <= F32_TO_TRUTH
            report(family, dtype, f"{mine[0]:12.2e} {mine[1]:9.2e} {theirs[0]:17.2e} {theirs[1]:9.2e} {between[0]:15.2e}", good)
            if rounded:
                fine = summary(truth, peers.ours(path, tokens, "bits", "16", *switch))
                report("  16 bits", dtype, f"{fine[0]:12.2e} {fine[1]:9.2e}", fine[0] <= theirs[0] / 100)
            if family == "phimoe":  # the default is the published model
                published = ReferenceModel(gguf).log_probs(tokens)
                mine = summary(published, peers.ours(path, tokens))
                limit = F32_TO_TRUTH if dtype == "f32" else PUBLISHED.get(dtype, 2.0) * theirs[0]
                report("  published", dtype, f"{mine[0]:12.2e} {mine[1]:9.2e}", mine[0] <= limit)
                if rounded:
                    fine = summary(published, peers.ours(path, tokens, "bits", "16"))
                    report("   16 bits", dtype, f"{fine[0]:12.2e} {fine[1]:9.2e}", fine[0] <= theirs[0] / 100)
    print(f"{n_checks - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
